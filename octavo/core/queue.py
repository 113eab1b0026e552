"""Requests that wait, in the order of a policy."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import chain, islice

from octavo.core.least import Least
from octavo.core.ordering import Ordering
from octavo.core.request import Request


class RequestQueue:
    """Sorted lists, one for each line of the policy, so that those further back can be looked at in order and taken
    out; to move the pointers behind costs little beside that. Most policies have one line."""

    def __init__(self, ordering: Ordering) -> None:
        self._ordering = ordering
        self._lines: dict[str, list[Request]] = {}
        self._members: set[Request] = set()
        self._first = Least(self._standing)
        self.num_pushed = 0
        """So far: whether somebody has come since."""

    def push(self, request: Request) -> None:
        name = self._ordering.line_of(request)
        line = self._lines.setdefault(name, [])
        insort(line, request, key=self._ordering.place)
        if line[0] is request:
            self._first.note(name, (self._ordering.share(name), request.order))
        self._members.add(request)
        self.num_pushed += 1

    def peek(self) -> Request | None:
        """The request that goes next."""
        if len(self._lines) == 1:
            (line,) = self._lines.values()
            return line[0]
        name = self._first.first()
        return None if name is None else self._lines[name][0]

    def following(self, first: Request, limit: int) -> list[Request]:
        """At most ``limit`` that come after ``first``, which stands here at the head, as things are now."""
        own = self._ordering.line_of(first)
        at = bisect_right(self._lines[own], self._ordering.place(first), key=self._ordering.place)
        others = (self._lines[name] for name in self._in_order() if name != own)
        return list(islice(chain(self._lines[own][at : at + limit], *others), limit))

    def num_before(self, request: Request) -> int:
        """How many stand before one that stands here, in its own line."""
        line = self._lines[self._ordering.line_of(request)]
        return bisect_left(line, self._ordering.place(request), key=self._ordering.place)

    def remove(self, request: Request) -> None:
        self._members.remove(request)
        name = self._ordering.line_of(request)
        line = self._lines[name]
        is_first = line[0] is request  # mostly
        del line[0 if is_first else bisect_left(line, self._ordering.place(request), key=self._ordering.place)]
        if not line:
            del self._lines[name]

    def hasten(self, request: Request) -> None:
        """Others are about to give way to one that stands here."""
        self.remove(request)
        self._ordering.hasten(request)
        self.push(request)

    def _in_order(self) -> list[str]:
        """The names of all lines."""
        return sorted(self._lines, key=lambda name: (self._ordering.share(name), self._lines[name][0].order))

    def _standing(self, name: str) -> tuple[float, int] | None:
        """Of a line, and of equals the one whose first request came first. Shares only grow."""
        line = self._lines.get(name)
        return None if line is None else (self._ordering.share(name), line[0].order)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, request: Request) -> bool:
        return request in self._members

    def __iter__(self) -> Iterator[Request]:
        """In order."""
        return chain.from_iterable(self._lines[name] for name in self._in_order())
