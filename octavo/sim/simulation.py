"""A trace, settings and a machine in; what comes of it out."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from octavo.core.errors import InvalidRequestError
from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig
from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import SchedulerConfig
from octavo.core.step import StepPlan, StepResult
from octavo.sim.costs import CostModel, StepWork, work_of
from octavo.sim.ends import Ends
from octavo.sim.recorder import Recorder, SLOs
from octavo.sim.replay import Arrival, LandedStep, Replay, Server, submit
from octavo.sim.requests import Answers, make_request
from octavo.sim.traces.request import TracedRequest

TOO_LONG = "can never run"
QUEUE_FULL = "queue is full"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """One server. ``max_num_queued``: requests that may wait; more are refused, as with 429."""

    scheduler: SchedulerConfig
    cache: CacheConfig
    max_num_queued: int | None = None


class Simulation:
    """Requests of a trace at one server, as they arrived. ``recorder``: what has come of them so far."""

    def __init__(
        self,
        requests: Iterable[TracedRequest],
        settings: ServerSettings,
        costs: CostModel,
        slos: SLOs | None = None,
    ) -> None:
        self._settings = settings
        self._ends = Ends()
        self._answers = Answers()
        self.scheduler = Scheduler(settings.scheduler, KVCacheManager(settings.cache))
        moved, nothing = StepWork(num_moved_blocks=1), StepWork()
        self.scheduler.population.costs.seconds_per_block = costs.step_seconds(moved) - costs.step_seconds(nothing)
        self.recorder = Recorder([self.scheduler], slos)
        server = Server(
            self.scheduler,
            lambda plan: costs.step_seconds(work_of(plan)),
            draw=self._draw,
            check_stop=self._ends.check,
            tell_time=self.scheduler.tell_time,
            submit=self._submit,
            learns_seconds=True,
        )
        self._replay = Replay([server], self._arrivals(requests))

    def run(self, on_step: Callable[[LandedStep], None] | None = None) -> Recorder:
        """To the last token; ``on_step`` is told of each step when the recorder has been."""
        for step in self._replay.steps():
            self.recorder.land(step)
            self.scheduler.take_preemptions()
            for request in step.outcome.finished:
                self._answers.drop(request)
            if on_step is not None:
                on_step(step)
        return self.recorder

    def _arrivals(self, requests: Iterable[TracedRequest]) -> Iterator[Arrival]:
        for number, traced in enumerate(requests):
            request = make_request(traced, number)
            if request.max_total_tokens > traced.prompt + traced.output:
                self._ends.add(request, traced.output)
            self._answers.expect(request, traced, number)
            self.recorder.arrive(request, traced.seconds)
            yield Arrival(traced.seconds, request)

    def _draw(self, plan: StepPlan) -> StepResult:
        self._ends.begin_landing()
        return self._answers.draw(plan, self.scheduler.last_planned)

    def _submit(self, scheduler: Scheduler, request: Request, now: float) -> None:
        most = self._settings.max_num_queued
        if most is not None and scheduler.num_waiting >= most:
            self._refuse(request, QUEUE_FULL)
            return
        try:
            submit(scheduler, request, now)
        except InvalidRequestError:
            self._refuse(request, TOO_LONG)

    def _refuse(self, request: Request, reason: str) -> None:
        self._ends.drop(request)
        self._answers.drop(request)
        self.recorder.reject(request, reason)
