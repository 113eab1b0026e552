"""How long a step takes: the one thing that a simulation does not get from the engine itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

from octavo.core.errors import ConfigurationError
from octavo.core.prompt_costs import chunks_of
from octavo.core.step import StepPlan


class StepWork(NamedTuple):
    """What a step computes, as far as its time depends on it.

    ``num_decodes`` rows compute one token and draw the next; they attend over ``decode_context`` tokens, all together.
    ``num_chunks`` rows compute ``chunk_tokens`` tokens of prompts; they attend over ``chunk_context`` tokens (each is
    read once a chunk) in ``chunk_pairs`` pairs of a token and one that it sees. ``num_moved_blocks`` go between the
    pools or are copied.
    """

    num_decodes: int = 0
    decode_context: int = 0
    num_chunks: int = 0
    chunk_tokens: int = 0
    chunk_context: int = 0
    chunk_pairs: int = 0
    num_moved_blocks: int = 0

    @property
    def num_tokens(self) -> int:
        """Positions that are computed."""
        return self.num_decodes + self.chunk_tokens

    @property
    def num_rows(self) -> int:
        return self.num_decodes + self.num_chunks

    @property
    def context(self) -> int:
        """Tokens whose keys and values are read."""
        return self.decode_context + self.chunk_context


@dataclass(frozen=True, slots=True)
class Front:
    """What lies between clients and the engine's steps: HTTP, and the ways between the processes. Seconds.

    The front takes requests in one after the other, ``per_request`` each; ``delay`` more go by until the scheduler has
    it and its first token is with the client. A step lasts ``per_step`` and, for each row that decodes, ``per_token``
    longer than without clients: the cores are shared.
    """

    per_request: float = 0.0
    delay: float = 0.0
    per_step: float = 0.0
    per_token: float = 0.0

    def step_seconds(self, work: StepWork) -> float:
        return self.per_step + self.per_token * work.num_decodes


NO_FRONT = Front()


@dataclass(frozen=True, slots=True)
class BlockCosts:
    """What the size of blocks costs; for the choice of one alone, steps do not take it into account.

    ``seconds``: to give a sequence one more block, to name it and to tell the runner. ``context_factors``: pairs of a
    size and how many times as long reading a token of context takes with it, as with the quickest; of sizes that are
    not there, nothing is known, and 1 is taken.
    """

    seconds: float = 20e-6
    context_factors: Sequence[Sequence[float]] = ()

    def context_factor(self, block_size: int) -> float:
        return next((factor for size, factor in self.context_factors if size == block_size), 1.0)


ANY_BLOCKS = BlockCosts()


class CostModel(Protocol):
    """A machine and a model on it."""

    @property
    def front(self) -> Front: ...

    @property
    def blocks(self) -> BlockCosts: ...

    def step_seconds(self, work: StepWork) -> float:
        """How long such a step takes, from its planning to its landing, without the front."""
        ...


def served_seconds(costs: CostModel, work: StepWork) -> float:
    """How long it takes on a server with clients."""
    return costs.step_seconds(work) + costs.front.step_seconds(work)


def work_of(plan: StepPlan) -> StepWork:
    """Counts what a plan computes. All is counted over the plan as a whole, but for its chunks: these are few."""
    num_tokens, context, chunks = plan.num_tokens, sum(plan.starts), chunks_of(plan)
    num_moved = len(plan.swap_outs) + len(plan.swap_ins) + len(plan.copies)
    if not chunks:
        return StepWork(num_tokens, context + num_tokens, num_moved_blocks=num_moved)
    chunk_tokens = sum(count for _, count in chunks)
    chunk_starts = sum(start for start, _ in chunks)
    num_decodes = num_tokens - chunk_tokens
    return StepWork(
        num_decodes=num_decodes,
        decode_context=context - chunk_starts + num_decodes,
        num_chunks=len(chunks),
        chunk_tokens=chunk_tokens,
        chunk_context=chunk_starts + chunk_tokens,
        chunk_pairs=sum(count * start + count * (count + 1) // 2 for start, count in chunks),
        num_moved_blocks=num_moved,
    )


@dataclass(frozen=True, slots=True)
class LinearCosts:
    """Seconds that add up: ``base`` a step, and for each row that decodes, each token of a prompt, each token of
    context that a decode or a chunk reads, each pair in a chunk, each block that is moved, and each chunk."""

    base: float
    per_decode: float
    per_chunk_token: float
    per_decode_context: float = 0.0
    per_chunk_context: float = 0.0
    per_chunk_pair: float = 0.0
    per_moved_block: float = 0.0
    per_chunk: float = 0.0
    front: Front = NO_FRONT
    blocks: BlockCosts = ANY_BLOCKS

    def step_seconds(self, work: StepWork) -> float:
        return (
            self.base
            + self.per_decode * work.num_decodes
            + self.per_decode_context * work.decode_context
            + self.per_chunk_token * work.chunk_tokens
            + self.per_chunk_context * work.chunk_context
            + self.per_chunk_pair * work.chunk_pairs
            + self.per_moved_block * work.num_moved_blocks
            + self.per_chunk * work.num_chunks
        )


@dataclass(frozen=True, slots=True)
class RooflineCosts:
    """A step takes as long as its arithmetic or its memory traffic, whichever is longer, and ``overhead_seconds``.

    ``flops``, ``bytes_per_second``: what the machine really reaches. A token costs ``flops_per_token`` and a pair of
    tokens that attend ``flops_per_pair``; a step reads ``weight_bytes`` once and ``kv_bytes_per_token`` of each token
    of context, and writes as much for each token; a block moves at ``moved_bytes_per_second``.

    Raises:
        ConfigurationError: one of the speeds is 0.
    """

    flops: float
    bytes_per_second: float
    weight_bytes: float
    flops_per_token: float
    kv_bytes_per_token: float
    flops_per_pair: float = 0.0
    overhead_seconds: float = 0.0
    block_bytes: float = 0.0
    moved_bytes_per_second: float = 16e9
    front: Front = NO_FRONT
    blocks: BlockCosts = ANY_BLOCKS

    def __post_init__(self) -> None:
        for name in ("flops", "bytes_per_second", "moved_bytes_per_second"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(
                    f"{name} of the roofline cost model is {getattr(self, name):g}; it takes more than 0"
                )

    def step_seconds(self, work: StepWork) -> float:
        num_pairs = work.decode_context + work.chunk_pairs
        arithmetic = (self.flops_per_token * work.num_tokens + self.flops_per_pair * num_pairs) / self.flops
        num_bytes = self.weight_bytes + self.kv_bytes_per_token * (work.context + work.num_tokens)
        moved = work.num_moved_blocks * self.block_bytes / self.moved_bytes_per_second
        return self.overhead_seconds + max(arithmetic, num_bytes / self.bytes_per_second) + moved


@dataclass(frozen=True, slots=True)
class TableCosts:
    """Measured seconds with straight lines between them, and on beyond the last two: of a step of so many rows that
    decode (``decode``), and of one that computes so many tokens of prompts (``prefill``). What does both takes the sum,
    less ``shared_seconds``, which each of them has (to read the weights), and never less than one of them alone.

    Tables are pairs of a count and seconds, in ascending order of the counts; two at least.

    Raises:
        ConfigurationError: a table is no such one.
    """

    decode: Sequence[tuple[float, float]]
    prefill: Sequence[tuple[float, float]]
    shared_seconds: float = 0.0
    front: Front = NO_FRONT
    blocks: BlockCosts = ANY_BLOCKS

    def __post_init__(self) -> None:
        for name, table in (("decode", self.decode), ("prefill", self.prefill)):
            if not _is_table(table):
                raise ConfigurationError(
                    f"{name} of the table cost model is {table!r:.60}; it takes two or more pairs [count, seconds], in "
                    "ascending order of the counts"
                )

    def step_seconds(self, work: StepWork) -> float:
        parts = ((self.decode, work.num_decodes), (self.prefill, work.chunk_tokens))
        seconds = [_interpolated(table, count) for table, count in parts if count]
        return max(sum(seconds) - self.shared_seconds, *seconds) if len(seconds) > 1 else sum(seconds)


def _is_table(pairs: object) -> bool:
    if not isinstance(pairs, Sequence) or len(pairs) < 2:
        return False
    if not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        return False
    return all(before[0] < after[0] for before, after in pairwise(pairs))


def _interpolated(table: Sequence[tuple[float, float]], count: float) -> float:
    """Never below 0."""
    after = next((i for i, (known, _) in enumerate(table) if known >= count), len(table) - 1)
    (x0, y0), (x1, y1) = table[max(0, after - 1)], table[max(1, after)]
    return max(0.0, y0 + (y1 - y0) * (count - x0) / (x1 - x0))
