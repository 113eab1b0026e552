"""Scheduling policies: who goes first, and who comes after whom in rank.

Two things are ordered. The **line**: which waiting request is admitted next. And the **rank**: which running request
gives its blocks back to which. A rank is drawn once and never changes, and no two requests have the same; so whoever is
first in rank gets on whatever the policy is, nobody takes turns, and there is no livelock (docs/scheduling.md).
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from octavo.core.request import Request
from octavo.core.running import RunningSet

MICROSECONDS = 10**6

ARRIVALS = 1 << 40
"""More requests than ever come: ranks of one moment differ by the number of the arrival."""


class Ordering(Protocol):
    """One policy, with what it has to remember."""

    def tell_time(self, now: float) -> None:
        """``now``: seconds, on a clock of the caller's."""
        ...

    def arrive(self, request: Request, running: RunningSet) -> None:
        """A request has come; its ``order``, ``priority`` and ``tenant`` are set."""
        ...

    def take_up(self, request: Request) -> None:
        """A request starts, or one that does is about to pass it: from now on it has a rank."""
        ...

    def start(self, request: Request) -> None:
        """A request is about to start, the first time or again."""
        ...

    def hasten(self, request: Request) -> None:
        """Others give way to a request, which stands in no line at the moment: from now on its place among those that
        have started, which come back to the line, is that of its rank."""
        ...

    def line_of(self, request: Request) -> str:
        """In which of several lines a waiting request stands. It stays there while it waits."""
        ...

    def place(self, request: Request) -> int:
        """Its place in that line, smallest first; stays the same while it waits."""
        ...

    def share(self, line: str) -> float:
        """The line with the smallest goes next; it never shrinks while somebody stands there."""
        ...

    def may_pass(self, request: Request) -> bool:
        """May it pass waiting requests that do not fit, as far as the policy goes?"""
        ...

    def are_equal(self, one: Request, other: Request) -> bool:
        """Are two waiting requests of equal standing, but for when they came?"""
        ...

    def givers(self, first: Request, running: RunningSet) -> Sequence[Request]:
        """Running requests, all after ``first`` in rank, that go back in line so that it can start at once."""
        ...

    def catch_up(self, running: Iterable[Request]) -> None:
        """Who waits is about to be looked at: take note of what these have got meanwhile."""
        ...

    def standing(self, request: Request) -> dict[str, int | float]:
        """To be shown: what counts for it, as things are now."""
        ...


class Fcfs:
    """First come, first served. What the other policies do not say is as here."""

    def tell_time(self, now: float) -> None:
        """The order of arrival is all that counts."""

    def arrive(self, request: Request, _running: RunningSet) -> None:
        request.rank = request.order

    def take_up(self, request: Request) -> None:
        """It has had its rank since it came."""

    def start(self, request: Request) -> None:
        """Who starts does not count."""

    def hasten(self, request: Request) -> None:
        """Its place is that of its rank anyway."""

    def line_of(self, _request: Request) -> str:
        return ""

    def place(self, request: Request) -> int:
        return request.rank

    def share(self, _line: str) -> float:
        return 0.0

    def may_pass(self, _request: Request) -> bool:
        return True

    def are_equal(self, _one: Request, _other: Request) -> bool:
        return True

    def givers(self, _first: Request, _running: RunningSet) -> Sequence[Request]:
        return ()

    def catch_up(self, _running: Iterable[Request]) -> None:
        """What they have got does not count."""

    def standing(self, _request: Request) -> dict[str, int | float]:
        return {}


class ByPriority(Fcfs):
    """The lowest number first, with ageing: a request counts as one level better for every ``aging_seconds`` that it
    has been there.

    All age alike, so who is before whom does not change while they wait: it is as if each had come
    ``priority * aging_seconds`` later than it did, first come, first served. That time is the rank. So a request of
    priority p goes before all of priority q < p that come (p - q) * aging_seconds after it, or later.
    """

    def __init__(self, aging_seconds: float) -> None:
        self._microseconds_a_level = round(aging_seconds * MICROSECONDS)
        self._now = 0

    def tell_time(self, now: float) -> None:
        """A clock that is set back would put later requests first; here time stands still until it is over."""
        self._now = max(self._now, round(now * MICROSECONDS))

    def arrive(self, request: Request, _running: RunningSet) -> None:
        as_if_come = self._now + request.priority * self._microseconds_a_level
        request.rank = as_if_come * ARRIVALS + request.order

    def are_equal(self, one: Request, other: Request) -> bool:
        return one.priority == other.priority

    def givers(self, first: Request, running: RunningSet) -> Sequence[Request]:
        """Those of a higher number that are not as old as to have passed it."""
        return [request for request in running.after(first) if request.priority > first.priority]

    def standing(self, request: Request) -> dict[str, int | float]:
        """The level it has come to by its age; a level of 0 seconds is none."""
        waited = self._now - (request.rank // ARRIVALS - request.priority * self._microseconds_a_level)
        num_levels = waited / self._microseconds_a_level if self._microseconds_a_level else 0.0
        return {"aged_priority": round(request.priority - num_levels, 3)}
