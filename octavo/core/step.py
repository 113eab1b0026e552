"""Everything that crosses between the scheduler and a runner, frozen once issued.

A step flows one way: ``Scheduler.schedule() -> StepPlan -> runner -> StepResult -> Scheduler.update()``. The runner
carries a plan out in this order: what goes to disk, swap outs, poisons, swap ins, what comes from disk, copies, new
rows, table writes, compute, release.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from octavo.core.sampling_params import SamplingParams

Pooling = Literal["mean", "last"]
"""What one vector is made of: the hidden states at all positions of a prompt, or the one at its last."""

UNITS_PER_ONE = 2**24
"""Hidden states are added up as whole numbers of this fraction, since floating-point sums depend on their order."""


class BlockCopy(NamedTuple):
    """Copy the contents of one block to another, in every layer of its group: inside the pool, or between it and the
    host pool."""

    source: int
    target: int


class DiskWrite(NamedTuple):
    """The contents ``name`` go from block ``block_id``, of the host pool if ``on_host``, to slot ``slot`` of the disk
    tier. ``age_rank``: see SlotRank."""

    block_id: int
    on_host: bool
    slot: int
    name: bytes
    age_rank: int


class DiskRead(NamedTuple):
    """Slot ``slot`` of the disk tier, which should hold the contents ``name``, comes into block ``block_id``."""

    slot: int
    name: bytes
    block_id: int


class SlotRank(NamedTuple):
    """A slot was used: of all slots it is now the one used last, since its ``age_rank`` is the highest. Kept beside the
    contents, so that a restart knows which are worth least."""

    slot: int
    age_rank: int


@dataclass(frozen=True, slots=True)
class DiskMoves:
    """What a plan does to the disk tier, in the order of the fields. ``drops``: slots whose contents are not to be
    found any more, not after a restart either. ``writes``: those worth most first, since the process may be killed
    meanwhile.

    A read whose slot does not hold what it should makes the step fail before it computes.
    """

    drops: tuple[int, ...] = ()
    writes: tuple[DiskWrite, ...] = ()
    ranks: tuple[SlotRank, ...] = ()
    reads: tuple[DiskRead, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.drops or self.writes or self.ranks or self.reads)


NO_DISK_MOVES = DiskMoves()


NO_BLOCK = -1
"""An entry of a block table that lies wholly behind the window of its layer group: nothing reads it any more."""


class TableWrite(NamedTuple):
    """Entry ``logical_block`` of a row's block table of layer group ``group`` becomes ``block_id``, or NO_BLOCK."""

    row_id: int
    group: int
    logical_block: int
    block_id: int


@dataclass(frozen=True, slots=True)
class NewRow:
    """A sequence that the runner does not know: newly admitted, or back after preemption.

    ``token_ids`` holds every landed token (prompt and output); ``block_ids`` one tuple a layer group.
    ``seed`` and ``choice_index`` fix the randomness of each position (spec D1).
    ``stop_token_ids`` are all ids that would end the sequence (EOS included); the sampler masks them until
    ``params.min_tokens`` tokens have been generated. ``pooling``: the hidden states of the prompt are wanted.
    """

    row_id: int
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    block_ids: tuple[tuple[int, ...], ...]
    params: SamplingParams
    seed: int
    choice_index: int
    stop_token_ids: frozenset[int]
    pooling: Pooling | None = None


class RowFork(NamedTuple):
    """Row ``row_id`` computes no token in this step (its count is 0): it draws its token after the last position that
    row ``source``, which stands before it in the plan, computes. So choices of one prompt begin."""

    row_id: int
    source: int


class RowDrafts(NamedTuple):
    """The last positions that row ``row_id`` computes in this step hold these tokens, which may or may not be those
    that belong there; before them stands one position, with the last token that has landed. A token is drawn after each
    of these positions, one by one, until one is drawn that is not the next draft."""

    row_id: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. ``row_ids``, ``starts``, ``counts`` and ``samples`` run in parallel, one entry a scheduled row.

    Row ``row_ids[i]`` computes the tokens at positions ``starts[i] .. starts[i] + counts[i] - 1`` of its sequence;
    where ``samples[i]`` is true, the token after the last of them is drawn. A position whose token has not landed yet
    is the last sample of this row, which the runner holds (design, Decided 1).

    ``swap_outs`` copy blocks of the pool to blocks of the host pool, ``swap_ins`` the other way; where two write one
    block, the later one counts. Writes to disk read their blocks before any of this, reads from disk come after it. A
    plan without rows only moves blocks. ``poisons``: blocks whose contents were dropped, for the sanitizer; whoever
    reads them gets NaN.
    """

    step_id: int
    swap_outs: tuple[BlockCopy, ...]
    swap_ins: tuple[BlockCopy, ...]
    copies: tuple[BlockCopy, ...]
    new_rows: tuple[NewRow, ...]
    table_writes: tuple[TableWrite, ...]
    row_ids: tuple[int, ...]
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    samples: tuple[bool, ...]
    released_rows: tuple[int, ...]
    forks: tuple[RowFork, ...] = ()
    drafts: tuple[RowDrafts, ...] = ()
    disk: DiskMoves = NO_DISK_MOVES
    poisons: tuple[int, ...] = ()
    num_tokens: int = field(init=False, repr=False)
    """Positions that it computes; many ask."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_tokens", sum(self.counts))


class TokenLogprobs(NamedTuple):
    """Logprobs at one position, raw (spec D9): of the token itself, its rank (1 = best), and the best k."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


class RowFault(NamedTuple):
    """Why no token could be drawn for one row; ``invalid``: what its own client asked for rules every token out."""

    message: str
    invalid: bool


class RunnerSeconds(NamedTuple):
    """What of a step went into drawing tokens, and into copying blocks to the host pool and back."""

    sample: float = 0.0
    swap_out: float = 0.0
    swap_in: float = 0.0


NO_SECONDS = RunnerSeconds()


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a runner sends back for one plan.

    ``token_ids`` has one entry for each true entry of ``plan.samples``, in order. ``logprobs`` maps a row id to the
    logprobs of its sampled token, where asked for. ``prompt_logprobs`` maps a row id to entries for the prompt
    tokens at positions ``start + 1 ...`` that this chunk's rows predict (at most one a computed position).
    ``faults`` maps a row id to what went wrong with its draw; its entry in ``token_ids`` means nothing.
    ``further`` maps the id of a row with drafts to the tokens that it drew after its first one, each after a draft that
    was right; ``further_logprobs`` to their logprobs, where asked for. A draw that goes wrong there is left to the next
    step, so it is none of the ``faults``.
    ``pooled`` maps the id of a row that pools to the sum, over the positions that count and that this step computes, of
    the hidden states after the final norm, in whole units (UNITS_PER_ONE): so sums of parts add up exactly.
    ``completed``: ids of rows whose text, with the last token that they drew, is all that their constraint allows.
    ``seconds``: where the runner reads a clock.
    """

    step_id: int
    token_ids: tuple[int, ...]
    logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: Mapping[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    faults: Mapping[int, RowFault] = field(default_factory=dict)
    further: Mapping[int, Sequence[int]] = field(default_factory=dict)
    further_logprobs: Mapping[int, Sequence[TokenLogprobs]] = field(default_factory=dict)
    completed: frozenset[int] = frozenset()
    pooled: Mapping[int, Sequence[int]] = field(default_factory=dict)
    seconds: RunnerSeconds = NO_SECONDS


class PendingStep(Protocol):
    """A step on its way; ``result`` waits for it and raises what the step raised."""

    def result(self) -> StepResult: ...


class Runner(Protocol):
    """Carries plans out, in the order of submission."""

    def submit(self, plan: StepPlan) -> PendingStep: ...

    def reset(self) -> None:
        """Forget every row and every step not yet carried out (after a failed one); KV contents stay. Returns when
        nothing of an earlier plan reads or writes the KV memory any more: its blocks are given out again at once."""
        ...

    def close(self) -> None:
        """Give up files that others may want to open. Nothing is submitted after."""
        ...
