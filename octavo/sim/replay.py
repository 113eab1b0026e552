"""The one loop: requests arrive over time at one server or several, each with the engine's own scheduler and allocator.

Nothing reads a clock. A step lasts as long as the caller says; what happens at one moment happens in this order: steps
land, requests arrive, and whoever stands idle and has work begins a step.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple, Protocol

from octavo.core.request import Request
from octavo.core.scheduler_types import StepOutcome, StopCheck
from octavo.core.step import StepPlan, StepResult
from octavo.sim.runner import draw_row_ids

StepSeconds = Callable[[StepPlan], float]
"""How long a step takes; asked when it has been planned."""

Draw = Callable[[StepPlan], StepResult]
"""What a step brings; asked when it lands."""


class Checker(Protocol):
    """Of the length of one request: see ``Door``."""

    def check(self, num_prompt_tokens: int, max_tokens: int) -> None: ...


class Steps(Protocol):
    """What the loop needs of a scheduler: the engine's own, or one of those before it (``octavo.sim.baselines``)."""

    @property
    def has_work(self) -> bool: ...

    @property
    def door(self) -> Checker: ...

    def add(self, request: Request) -> None: ...

    def schedule(self) -> StepPlan | None: ...

    def update(self, result: StepResult, check_stop: StopCheck | None = None, /) -> StepOutcome: ...


Submit = Callable[[Steps, Request, float], None]
"""Puts a request in line at a server, or refuses it; with the time."""


class Arrival(NamedTuple):
    """A request, and when it is due."""

    due: float
    request: Request


class LandedStep(NamedTuple):
    """One step of server ``place``: it was planned at ``start`` and landed at ``now``."""

    now: float
    start: float
    place: int
    plan: StepPlan
    outcome: StepOutcome


def submit(scheduler: Steps, request: Request, _now: float = 0.0) -> None:
    """Checks a request as the engine does, and puts it in line.

    Raises:
        InvalidRequestError: the memory can never hold it.
    """
    scheduler.door.check(request.num_prompt_tokens, request.max_total_tokens - request.num_prompt_tokens)
    scheduler.add(request)


class Server:
    """One scheduler, one step at a time. ``check_stop``: see ``Scheduler.update``; ``tell_time``: told the time before
    requests get in line; ``tell_seconds``: told what steps took before they land."""

    def __init__(
        self,
        scheduler: Steps,
        step_seconds: StepSeconds,
        *,
        draw: Draw = draw_row_ids,
        check_stop: StopCheck | None = None,
        tell_time: Callable[[float], None] | None = None,
        submit: Submit = submit,
        tell_seconds: Callable[[StepPlan, float], None] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._step_seconds = step_seconds
        self._draw = draw
        self._check_stop = check_stop
        self._tell_time = tell_time
        self._submit = submit
        self._tell_seconds = tell_seconds
        self._inbox: deque[Request] = deque()
        self._plan: StepPlan | None = None
        self._start = 0.0

    @property
    def is_idle(self) -> bool:
        return self._plan is None

    def receive(self, request: Request) -> None:
        self._inbox.append(request)

    def begin_step(self, now: float) -> float | None:
        """Plan a step; returns when it lands, or None if there is nothing to do."""
        if self._tell_time is not None:
            self._tell_time(now)
        while self._inbox:
            self._submit(self.scheduler, self._inbox.popleft(), now)
        if not self.scheduler.has_work:
            return None
        plan = self.scheduler.schedule()
        assert plan is not None, "there is work"
        self._plan, self._start = plan, now
        return now + self._step_seconds(plan)

    def land(self, now: float, place: int) -> LandedStep:
        """The step has landed."""
        plan, self._plan = self._plan, None
        assert plan is not None, "a step is on its way"
        if self._tell_seconds is not None:
            self._tell_seconds(plan, now - self._start)
        outcome = self.scheduler.update(self._draw(plan), self._check_stop)
        return LandedStep(now, self._start, place, plan, outcome)


Route = Callable[[Request, list[Server]], int]
"""Which server gets a request."""


def only_server(_request: Request, _servers: list[Server]) -> int:
    return 0


class Replay:
    """``arrivals``, in order of their time, are read one ahead: they may be without end. ``now``: when the last step
    landed."""

    def __init__(self, servers: list[Server], arrivals: Iterable[Arrival], route: Route = only_server) -> None:
        self.servers = servers
        self.now = 0.0
        self._coming = iter(arrivals)
        self._next = next(self._coming, None)
        self._route = route
        self._landings: list[tuple[float, int]] = []
        self._deliveries: list[tuple[float, int, int, Request]] = []
        self._num_deliveries = 0

    def deliver(self, due: float, place: int, request: Request) -> None:
        """A request that comes from another server reaches this one later, or now."""
        self._num_deliveries += 1
        heappush(self._deliveries, (due, self._num_deliveries, place, request))

    def steps(self) -> Iterator[LandedStep]:
        """Every step as it lands, to the last token of the last request."""
        while self._next is not None or self._landings or self._deliveries:
            now = min(self._next_due, _first(self._landings), _first(self._deliveries))
            awake: list[int] = []
            while self._landings and self._landings[0][0] <= now:
                self.now, place = heappop(self._landings)
                awake.append(place)
                yield self.servers[place].land(self.now, place)
            for place in self._arrive(now):
                if self.servers[place].is_idle and place not in awake:
                    awake.append(place)
            for place in awake:
                end = self.servers[place].begin_step(now)
                if end is not None:
                    heappush(self._landings, (end, place))

    @property
    def _next_due(self) -> float:
        return math.inf if self._next is None else self._next.due

    def _arrive(self, now: float) -> Iterator[int]:
        """Those that are due go to their servers; yields which."""
        while _first(self._deliveries) <= now:
            _, _, place, request = heappop(self._deliveries)
            self.servers[place].receive(request)
            yield place
        while self._next_due <= now:
            yield self._take_next()

    def _take_next(self) -> int:
        """The next request goes to its server; returns which."""
        assert self._next is not None
        request = self._next.request
        self._next = next(self._coming, None)
        place = self._route(request, self.servers)
        self.servers[place].receive(request)
        return place


def _first(events: Sequence[tuple[Any, ...]]) -> float:
    """When the first of a heap is due."""
    due: float = events[0][0] if events else math.inf
    return due
