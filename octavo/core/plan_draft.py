"""A step plan while the scheduler is making it; frozen by ``freeze``, never edited after."""

from octavo.core.decode_batch import Roster
from octavo.core.kv_manager import Extension
from octavo.core.request import Request
from octavo.core.step import BlockCopy, NewRow, StepPlan, TableWrite


class PlanDraft:
    """The members of the decode batch come first (one token each, all sampling), then others, row by row."""

    def __init__(self, step_id: int, max_tokens: int) -> None:
        self.step_id = step_id
        self.max_tokens = max_tokens
        self.roster = Roster([], [], [], [])
        self.requests: list[Request] = []
        self.row_ids: list[int] = []
        self.starts: list[int] = []
        self.counts: list[int] = []
        self.samples: list[bool] = []
        self.copies: list[BlockCopy] = []
        self.table_writes: list[TableWrite] = []
        self.new_requests: list[Request] = []
        self.has_preempted = False
        self.num_owed_blocks = 0
        """Blocks that running requests will still need for tokens they already have."""

    def add_batch(self, roster: Roster, num_planned: int) -> None:
        """One token of each member, every one sampling."""
        size = len(roster.requests)
        self.roster = roster
        self.requests = roster.requests.copy()
        self.row_ids = roster.row_ids.copy()
        self.starts = list(map(num_planned.__add__, roster.offsets))
        self.counts = [1] * size
        self.samples = [True] * size
        self.max_tokens -= size

    def add_chunk(self, request: Request, count: int) -> bool:
        """The next ``count`` tokens of a request; samples, and returns true, where they are the last ones known."""
        start = request.num_computed_tokens
        samples = start + count == request.num_planned_tokens
        self.requests.append(request)
        self.row_ids.append(request.row_id)
        self.starts.append(start)
        self.counts.append(count)
        self.samples.append(samples)
        self.max_tokens -= count
        request.plan(count, samples)
        return samples

    def add_extension(self, extension: Extension) -> None:
        self.table_writes += extension.writes
        self.copies += extension.copies

    def freeze(self, released_rows: tuple[int, ...]) -> StepPlan:
        return StepPlan(
            step_id=self.step_id,
            copies=tuple(self.copies),
            new_rows=tuple(map(_new_row, self.new_requests)),
            table_writes=tuple(self.table_writes),
            row_ids=tuple(self.row_ids),
            starts=tuple(self.starts),
            counts=tuple(self.counts),
            samples=tuple(self.samples),
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
    )
