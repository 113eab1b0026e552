"""One server of a simulation: the engine's own scheduler, and answers that end where the trace says."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from octavo.core.errors import InvalidRequestError
from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig
from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import SchedulerConfig, StepOutcome
from octavo.core.step import StepPlan, StepResult
from octavo.core.step_times import note_step_seconds
from octavo.sim.costs import CostModel, StepWork
from octavo.sim.ends import Ends
from octavo.sim.replay import Server, Steps
from octavo.sim.requests import Answers
from octavo.sim.traces.request import TracedRequest

TOO_LONG = "can never run"
QUEUE_FULL = "queue is full"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """One server. ``max_num_queued``: requests that may wait; more are refused, as with 429."""

    scheduler: SchedulerConfig
    cache: CacheConfig
    max_num_queued: int | None = None


def move_seconds(costs: CostModel) -> float:
    """To move one block between the pools, beside other work."""
    return costs.step_seconds(StepWork(num_moved_blocks=1)) - costs.step_seconds(StepWork())


class Expected(NamedTuple):
    """What a trace says of a request, its ``number``th."""

    traced: TracedRequest
    number: int


class Replica:
    """``step_seconds``: how long a step takes that its scheduler has just planned; ``refuse``: told whom it refuses,
    and why. ``move_seconds``: what it takes to move a block. The scheduler learns what steps take, as on a server."""

    def __init__(
        self,
        settings: ServerSettings,
        step_seconds: Callable[[StepPlan, Scheduler], float],
        refuse: Callable[[Request, str], None],
        move_seconds: float,
    ) -> None:
        self.scheduler = Scheduler(settings.scheduler, KVCacheManager(settings.cache))
        self.scheduler.population.costs.seconds_per_block = move_seconds
        self._max_num_queued = settings.max_num_queued
        self._refuse_at = refuse
        self._ends = Ends()
        self._answers = Answers()
        self.load = 0
        """Requests that were sent here, perhaps still on their way, and have not ended."""
        self.server = Server(
            self.scheduler,
            lambda plan: step_seconds(plan, self.scheduler),
            draw=self._draw,
            check_stop=self._ends.check,
            tell_time=self.scheduler.tell_time,
            submit=self._submit,
            tell_seconds=partial(note_step_seconds, self.scheduler),
        )

    def expect(self, request: Request, coming: Expected) -> None:
        """A request is coming that gets so many tokens as the trace says, perhaps less than it may have."""
        if request.max_total_tokens > request.num_prompt_tokens + coming.traced.output:
            self._ends.add(request, coming.traced.output)
        self._answers.expect(request, *coming)
        self.load += 1

    def can_run(self, request: Request) -> bool:
        """Is there memory enough for it, and no bound below its length?"""
        num_prompt = request.num_prompt_tokens
        try:
            self.scheduler.door.check(num_prompt, request.max_total_tokens - num_prompt)
        except InvalidRequestError:
            return False
        return True

    def clear_up(self, outcome: StepOutcome) -> None:
        """A step has landed, and all is known of it that anybody asks for."""
        self.scheduler.take_preemptions()
        for request in outcome.finished:
            self._answers.drop(request)
        self.load -= len(outcome.finished)

    def _draw(self, plan: StepPlan) -> StepResult:
        self._ends.begin_landing()
        return self._answers.draw(plan, self.scheduler.last_planned)

    def _submit(self, _scheduler: Steps, request: Request, _now: float) -> None:
        most = self._max_num_queued
        if most is not None and self.scheduler.num_waiting >= most:
            self._refuse(request, QUEUE_FULL)
            return
        if self.can_run(request):
            self.scheduler.add(request)
        else:
            self._refuse(request, TOO_LONG)

    def _refuse(self, request: Request, reason: str) -> None:
        self._ends.drop(request)
        self._answers.drop(request)
        self.load -= 1
        self._refuse_at(request, reason)
