"""When open requests have to have started, and to have ended."""

import heapq
from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from octavo.engine.messages import EngineRequest, Timeout


class Bound(NamedTuple):
    """``time``: seconds since the epoch."""

    time: float
    request_id: str
    kind: Timeout


class Deadlines:
    """The bounds of open requests, the next one known at once. Those of requests that have ended are left where they
    are until their time comes, or until they are most of what is kept."""

    def __init__(self) -> None:
        self._heap: list[Bound] = []
        self._requests: dict[str, EngineRequest] = {}

    @property
    def next_time(self) -> float:
        """Nothing is overdue before it; infinite where there are no bounds."""
        return self._heap[0].time if self._heap else inf

    def add(self, request: EngineRequest) -> None:
        bounds = _bounds_of(request)
        if bounds:
            self._requests[request.request_id] = request
            for bound in bounds:
                heapq.heappush(self._heap, bound)

    def remove(self, request_id: str) -> None:
        """The request has ended."""
        self._requests.pop(request_id, None)
        if len(self._heap) > 64 + 4 * len(self._requests):
            self._heap = [bound for request in self._requests.values() for bound in _bounds_of(request)]
            heapq.heapify(self._heap)

    def take_overdue(self, now: float) -> Iterator[tuple[EngineRequest, Timeout]]:
        """Open requests with a bound before ``now``, the earliest first; each bound is told once, and none of a request
        that has ended (``remove``) when its turn comes."""
        while self._heap and self._heap[0].time <= now:
            bound = heapq.heappop(self._heap)
            request = self._requests.get(bound.request_id)
            if request is not None and bound in _bounds_of(request):  # else of an earlier one with this id
                yield request, bound.kind


def next_bound(request: EngineRequest, *, is_started: bool) -> Bound | None:
    """The first that counts for an open request; None: there is none."""
    bounds = (bound for bound in _bounds_of(request) if not (is_started and bound.kind == "queue"))
    return min(bounds, default=None)


def seconds_told(seconds: float) -> str:
    """Short times with their milliseconds: "0.0 s" beside a bound of 0.02 s would tell nothing."""
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds:.3f} s"


def timeout_message(request: EngineRequest, kind: Timeout, now: float) -> str:
    """For a client whose request was ended by its time."""
    waited = now - request.arrival_time
    if kind == "queue":
        allowed = round((request.start_by or now) - request.arrival_time, 3)
        return f"it has waited {seconds_told(waited)} without being started and may wait {allowed:g} s"
    allowed = round((request.end_by or now) - request.arrival_time, 3)
    return f"it is not finished after {seconds_told(waited)} and may take {allowed:g} s"


def _bounds_of(request: EngineRequest) -> list[Bound]:
    times: tuple[tuple[float | None, Timeout], ...] = ((request.start_by, "queue"), (request.end_by, "deadline"))
    return [Bound(time, request.request_id, kind) for time, kind in times if time is not None]
