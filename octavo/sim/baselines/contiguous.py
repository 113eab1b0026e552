"""Continuous batching without paging, as Orca does it: sequences enter and leave at every step, and each has one piece
of contiguous memory from its first step to its last."""

from dataclasses import dataclass

from octavo.core.request import Request, Status
from octavo.core.scheduler_types import StepOutcome, StopCheck
from octavo.core.step import StepPlan, StepResult
from octavo.sim.baselines.allocators import Piece
from octavo.sim.baselines.line import PieceScheduler
from octavo.sim.baselines.memory import Memory
from octavo.sim.baselines.plans import PlannedRow, make_plan
from octavo.sim.baselines.reservation import Reservation


@dataclass(slots=True)
class Resident:
    """A request in its piece, and how many of its tokens have been written, or will when the step lands."""

    request: Request
    piece: Piece
    row_id: int
    written: int = 0

    @property
    def is_decoding(self) -> bool:
        return self.written >= self.request.num_prompt_tokens


class ContiguousScheduler(PieceScheduler):
    """Budgets are spent as Octavo spends them: one token for each sequence that generates, then prompts in chunks, the
    oldest first."""

    def __init__(self, memory: Memory, reservation: Reservation) -> None:
        super().__init__(memory, reservation)
        self._resident: list[Resident] = []
        self._planned: list[PlannedRow] = []
        self._num_rows = 0

    @property
    def num_running(self) -> int:
        return len(self._resident)

    @property
    def filled_slots(self) -> int:
        return sum(resident.written for resident in self._resident)

    @property
    def held_slots(self) -> int:
        return sum(resident.piece.size for resident in self._resident)

    def schedule(self) -> StepPlan:
        """Spend one step's budget."""
        budget = self._memory.max_num_batched_tokens
        behind = [resident for resident in self._resident if not resident.is_decoding]
        self._planned = [self._plan_row(resident, 1) for resident in self._resident if resident.is_decoding]
        budget -= len(self._planned)
        while budget and (oldest := behind.pop(0) if behind else self._admit_resident()):
            count = min(budget, oldest.request.num_prompt_tokens - oldest.written)
            self._planned.append(self._plan_row(oldest, count))
            budget -= count
        self._num_steps += 1
        return make_plan(self._num_steps, self._planned)

    def update(self, result: StepResult, _check_stop: StopCheck | None = None) -> StepOutcome:
        """The step has landed: every row that has computed all it had drew a token."""
        outcome = StepOutcome([row.request for row in self._planned])
        drawn = iter(result.token_ids)
        for row in self._planned:
            if row.samples:
                outcome.sampled.append(row.request)
                outcome.token_ids.append(next(drawn))
                row.request.token_ids.append(outcome.token_ids[-1])
        gone = {each.row_id for each in self._resident if each.request.num_tokens >= each.request.max_total_tokens}
        for resident in self._resident:
            if resident.row_id in gone:
                self._pieces.give_back(resident.piece)
                resident.request.move_to(Status.LENGTH)
                outcome.finished.append(resident.request)
        self._resident = [resident for resident in self._resident if resident.row_id not in gone]
        return outcome

    def _plan_row(self, resident: Resident, count: int) -> PlannedRow:
        start, resident.written = resident.written, resident.written + count
        return PlannedRow(resident.request, resident.row_id, start, count, resident.is_decoding)

    def _admit_resident(self) -> Resident | None:
        admitted = self._admit()
        if admitted is None:
            return None
        self._num_rows += 1
        self._resident.append(Resident(*admitted, self._num_rows))
        return self._resident[-1]
