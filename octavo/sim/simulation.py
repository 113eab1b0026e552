"""A trace, settings and machines in; what comes of it out."""

from collections.abc import Callable, Iterable, Iterator

from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.core.step import StepPlan
from octavo.sim.costs import CostModel, served_seconds, work_of
from octavo.sim.front_line import FrontLine
from octavo.sim.recorder import Recorder, SLOs
from octavo.sim.replay import Arrival, LandedStep, Replay, Server
from octavo.sim.replica import QUEUE_FULL, TOO_LONG, Expected, Replica, ServerSettings, move_seconds
from octavo.sim.requests import make_request
from octavo.sim.routers import RoundRobin, Router
from octavo.sim.traces.request import TracedRequest

__all__ = ["QUEUE_FULL", "TOO_LONG", "ServerSettings", "Simulation"]


class Simulation:
    """Requests of a trace at ``num_replicas`` servers of the same kind, as they arrived; ``router`` says who goes
    where. ``recorder``: what has come of them so far."""

    def __init__(
        self,
        requests: Iterable[TracedRequest],
        settings: ServerSettings,
        costs: CostModel,
        slos: SLOs | None = None,
        *,
        num_replicas: int = 1,
        router: Router | None = None,
    ) -> None:
        self._costs = costs
        self._front = FrontLine(costs.front, num_replicas)
        self._router = router or RoundRobin()
        self.replicas = [
            Replica(settings, self._step_seconds, self._refuse, move_seconds(costs)) for _ in range(num_replicas)
        ]
        self.recorder = Recorder([replica.scheduler for replica in self.replicas], slos)
        self._coming: dict[Request, Expected] = {}
        self._replay = Replay([replica.server for replica in self.replicas], self._arrivals(requests), self._route)

    @property
    def scheduler(self) -> Scheduler:
        """Of the first server."""
        return self.replicas[0].scheduler

    def run(self, on_step: Callable[[LandedStep], None] | None = None) -> Recorder:
        """To the last token; ``on_step`` is told of each step when the recorder has been."""
        for step in self._replay.steps():
            self.recorder.land(step)
            self.replicas[step.place].clear_up(step.outcome)
            if on_step is not None:
                on_step(step)
        return self.recorder

    def _arrivals(self, requests: Iterable[TracedRequest]) -> Iterator[Arrival]:
        for number, traced in enumerate(requests):
            request = make_request(traced, number)
            self._coming[request] = Expected(traced, number)
            self.recorder.arrive(request, traced.seconds)
            yield Arrival(self._front.pass_through(traced.seconds), request)

    def _route(self, request: Request, _servers: list[Server]) -> int:
        place = self._router.choose(request, self.replicas)
        self.replicas[place].expect(request, self._coming.pop(request))
        return place

    def _step_seconds(self, plan: StepPlan, _scheduler: Scheduler) -> float:
        return served_seconds(self._costs, work_of(plan))

    def _refuse(self, request: Request, reason: str) -> None:
        self.recorder.reject(request, reason)
