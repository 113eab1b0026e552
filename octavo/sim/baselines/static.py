"""Static batching: a batch is made of who is in line, and nobody enters or leaves before its longest answer ends."""

from octavo.core.request import Request, Status
from octavo.core.scheduler_types import StepOutcome, StopCheck
from octavo.core.step import StepPlan, StepResult
from octavo.sim.baselines.allocators import Piece
from octavo.sim.baselines.line import PieceScheduler
from octavo.sim.baselines.memory import Memory
from octavo.sim.baselines.plans import PlannedRow, make_plan
from octavo.sim.baselines.reservation import Reservation


class StaticScheduler(PieceScheduler):
    """As many of those in line as there are pieces for. All prompts are padded to the longest and computed in one step;
    then every row computes a token a step, also those whose answer is whole: answers are returned together."""

    def __init__(self, memory: Memory, reservation: Reservation) -> None:
        super().__init__(memory, reservation)
        self._batch: list[tuple[Request, Piece]] = []
        self._written = 0

    @property
    def num_running(self) -> int:
        return len(self._batch)

    @property
    def filled_slots(self) -> int:
        """Padding, and what is computed after the end of an answer, fill nothing."""
        drawn = self._written - self._width
        return sum(
            request.num_prompt_tokens + min(drawn, request.max_total_tokens - request.num_prompt_tokens - 1)
            for request, _ in self._batch
        )

    @property
    def held_slots(self) -> int:
        return sum(piece.size for _, piece in self._batch)

    def schedule(self) -> StepPlan:
        """A new batch, or one more token of each row of this one."""
        self._num_steps += 1
        if not self._batch:
            self._make_batch()
            self._written = self._width
            return make_plan(self._num_steps, self._rows(0, self._width))
        self._written += 1
        return make_plan(self._num_steps, self._rows(self._written - 1, 1))

    def update(self, result: StepResult, _check_stop: StopCheck | None = None) -> StepOutcome:
        """The step has landed; with the last of the batch all of it ends."""
        outcome = StepOutcome([request for request, _ in self._batch])
        for (request, _), token_id in zip(self._batch, result.token_ids, strict=True):
            if request.num_tokens < request.max_total_tokens:
                outcome.sampled.append(request)
                outcome.token_ids.append(token_id)
                request.token_ids.append(token_id)
        if all(request.num_tokens >= request.max_total_tokens for request, _ in self._batch):
            for request, piece in self._batch:
                self._pieces.give_back(piece)
                request.move_to(Status.LENGTH)
                outcome.finished.append(request)
            self._batch = []
        return outcome

    @property
    def _width(self) -> int:
        """The longest prompt."""
        return max((request.num_prompt_tokens for request, _ in self._batch), default=0)

    def _make_batch(self) -> None:
        while admitted := self._admit():
            self._batch.append(admitted)

    def _rows(self, start: int, count: int) -> list[PlannedRow]:
        return [PlannedRow(request, number, start, count, True) for number, (request, _) in enumerate(self._batch)]
