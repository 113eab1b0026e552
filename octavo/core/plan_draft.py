"""A step plan while the scheduler is making it; frozen by ``freeze``, never edited after."""

from octavo.core.chunk_budget import ChunkBudget
from octavo.core.decode_batch import Roster
from octavo.core.host_pool import Moves
from octavo.core.kv_types import Extension
from octavo.core.request import Request
from octavo.core.step import BlockCopy, NewRow, RowDrafts, RowFork, StepPlan, TableWrite


class PlanDraft:
    """The members of the decode batch (``roster``) come first, one token each, all sampling; then the ``others``, row
    by row, of which ``row_ids`` and the lists after it say the rest. ``on_trial``: nothing but this request is planned,
    since a step with it has failed."""

    def __init__(self, step_id: int, max_tokens: int, on_trial: Request | None) -> None:
        self.step_id = step_id
        self.max_tokens = max_tokens
        self.on_trial = on_trial
        self.chunks = ChunkBudget(max_tokens)
        """What of ``max_tokens`` is for prompts."""
        self.roster = Roster()
        self.others: list[Request] = []
        self.row_ids: list[int] = []
        self.starts: list[int] = []
        self.counts: list[int] = []
        self.samples: list[bool] = []
        self.copies: list[BlockCopy] = []
        self.table_writes: list[TableWrite] = []
        self.new_requests: list[Request] = []
        self.unfounded: list[Request] = []
        """Requests that begin in this step on what it computes or brings in itself."""
        self.row_forks: list[RowFork] = []
        self.row_drafts: list[RowDrafts] = []
        self.has_preempted = False
        self.is_for_one = False
        """Others gave way to the first in line: this step admits it, or nobody."""
        self.withheld: set[Request] = set()
        """Running requests that no row of this step may compute: they are to give way, once they are not in flight."""
        self.num_owed_blocks = 0
        """Blocks that running requests will still need for tokens they already have."""

    @property
    def is_empty(self) -> bool:
        return not self.row_ids and not self.roster.row_ids

    @property
    def requests(self) -> list[Request]:
        """Row by row."""
        return self.roster.requests + self.others

    def add_batch(self, roster: Roster) -> None:
        """One token of each member, every one sampling."""
        self.roster = roster
        self.max_tokens -= len(roster.requests)

    def add_chunk(self, request: Request, count: int) -> bool:
        """The next ``count`` tokens of a request; samples, and returns true, where they are the last ones known."""
        start = request.num_computed_tokens
        samples = start + count == request.num_planned_tokens
        self._add_row(request, start, count, samples)
        self.max_tokens -= count
        return samples

    def add_fork(self, parent: Request, child: Request) -> None:
        """``child`` draws its first token from what the last chunk of its parent computes."""
        self.new_requests.append(child)
        self.unfounded.append(child)
        self.row_forks.append(RowFork(child.row_id, parent.row_id))
        self._add_row(child, child.num_computed_tokens, 0, True)

    def takes_drafts(self, place: int) -> bool:
        """Could row ``place`` of the others go on with drafts? It computes the last token of an answer, and no other
        step the same sequence."""
        request = self.others[place]
        computes_last = self.samples[place] and self.counts[place] == 1 and request.num_output_tokens > 0
        is_alone = request.batch is None and request.num_in_flight == 1
        return computes_last and request.drafter is not None and is_alone

    def add_drafts(self, place: int, token_ids: tuple[int, ...]) -> None:
        """Row ``place`` of the others goes on with these tokens, which have room in its blocks."""
        self.row_drafts.append(RowDrafts(self.row_ids[place], token_ids))
        self.counts[place] += len(token_ids)
        self.max_tokens -= len(token_ids)
        self.others[place].plan_drafts(len(token_ids))

    def _add_row(self, request: Request, start: int, count: int, samples: bool) -> None:
        self.others.append(request)
        self.row_ids.append(request.row_id)
        self.starts.append(start)
        self.counts.append(count)
        self.samples.append(samples)
        request.plan(count, samples)

    def add_extension(self, extension: Extension) -> None:
        self.table_writes += extension.writes
        self.copies += extension.copies

    def freeze(
        self, num_planned: int, moves: Moves, released_rows: tuple[int, ...], poisons: tuple[int, ...]
    ) -> StepPlan:
        """``num_planned``: steps of the decode batch planned before this one."""
        batch_size = len(self.roster.requests)
        return StepPlan(
            step_id=self.step_id,
            swap_outs=tuple(moves.swap_outs),
            swap_ins=tuple(moves.swap_ins),
            disk=moves.disk,
            poisons=poisons,
            copies=tuple(self.copies),
            new_rows=tuple(map(_new_row, self.new_requests)),
            table_writes=tuple(self.table_writes),
            row_ids=(*self.roster.row_ids, *self.row_ids),
            starts=tuple([num_planned + offset for offset in self.roster.offsets] + self.starts),
            counts=(1,) * batch_size + tuple(self.counts),
            samples=(True,) * batch_size + tuple(self.samples),
            forks=tuple(self.row_forks),
            drafts=tuple(self.row_drafts),
            released_rows=released_rows,
        )


def _new_row(request: Request) -> NewRow:
    assert request.tables is not None, "a planned request has tables"
    return NewRow(
        row_id=request.row_id,
        token_ids=tuple(request.token_ids),
        num_prompt_tokens=request.num_prompt_tokens,
        block_ids=tuple(map(tuple, request.tables.groups)),
        params=request.params,
        seed=request.seed,
        choice_index=request.choice_index,
        stop_token_ids=request.stop_token_ids,
        pooling=request.pooling,
    )
