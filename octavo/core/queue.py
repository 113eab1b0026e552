"""Requests that wait, in the order of a policy's key."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator

from octavo.core.request import Request


class RequestQueue:
    """A sorted list, so that those further back can be looked at in order and taken out; to move the pointers behind
    costs little beside that.

    ``key``: smallest first; no two requests have the same, and a request keeps its own while it stands here.
    """

    def __init__(self, key: Callable[[Request], tuple[int, ...]]) -> None:
        self._key = key
        self._line: list[Request] = []
        self._members: set[Request] = set()
        self.num_pushed = 0
        """So far: whether somebody has come since."""

    def push(self, request: Request) -> None:
        insort(self._line, request, key=self._key)
        self._members.add(request)
        self.num_pushed += 1

    def peek(self) -> Request | None:
        """The request that goes next."""
        return self._line[0] if self._line else None

    def peek_after(self, request: Request) -> Request | None:
        """The one that comes next after ``request``, whether or not that one still stands here."""
        at = bisect_right(self._line, self._key(request), key=self._key)
        return self._line[at] if at < len(self._line) else None

    def remove(self, request: Request) -> None:
        self._members.remove(request)
        del self._line[bisect_left(self._line, self._key(request), key=self._key)]

    def __len__(self) -> int:
        return len(self._line)

    def __contains__(self, request: Request) -> bool:
        return request in self._members

    def __iter__(self) -> Iterator[Request]:
        """In order."""
        return iter(self._line)
