"""A step plan while the scheduler is making it; frozen by ``freeze``, never edited after."""

from octavo.core.kv_manager import Extension, TableChange
from octavo.core.request import Request
from octavo.core.step import BlockCopy, NewRow, StepPlan, TableWrite


class PlanDraft:
    """Rows with one token left come first (``counts`` 1, all sampling); longer chunks follow."""

    def __init__(self, step_id: int, max_tokens: int) -> None:
        self.step_id = step_id
        self.max_tokens = max_tokens
        self.requests: list[Request] = []
        self.starts: list[int] = []
        self.counts: list[int] = []
        self.samples: list[bool] = []
        self.copies: list[BlockCopy] = []
        self.table_writes: list[TableWrite] = []
        self.new_requests: list[Request] = []
        self.has_preempted = False
        self.num_owed_blocks = 0
        """Blocks that running requests will still need for tokens they already have."""

    def add_decodes(self, requests: list[Request], starts: list[int]) -> None:
        """One token each, every one sampling; the scheduler has advanced their counts."""
        self.requests = requests
        self.starts = starts
        self.counts = [1] * len(requests)
        self.samples = [True] * len(requests)
        self.max_tokens -= len(requests)

    def add_chunk(self, request: Request, count: int) -> None:
        """The next ``count`` tokens of a request; samples where they are the last ones known."""
        end = request.num_computed_tokens + count
        samples = end == request.num_planned_tokens
        self.requests.append(request)
        self.starts.append(request.num_computed_tokens)
        self.counts.append(count)
        self.samples.append(samples)
        self.max_tokens -= count
        request.num_computed_tokens = end
        request.num_pending_samples += samples
        request.num_in_flight += 1

    def add_extension(self, request: Request, extension: Extension) -> None:
        self.add_table_changes(request, extension.changes)
        self.copies += extension.copies

    def add_table_changes(self, request: Request, changes: list[TableChange]) -> None:
        self.table_writes += [TableWrite(request.row_id, *change) for change in changes]

    def freeze(self, released_rows: tuple[int, ...]) -> StepPlan:
        return StepPlan(
            step_id=self.step_id,
            copies=tuple(self.copies),
            new_rows=tuple(map(_new_row, self.new_requests)),
            table_writes=tuple(self.table_writes),
            row_ids=tuple([request.row_id for request in self.requests]),
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
