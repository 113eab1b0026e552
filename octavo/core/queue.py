"""Requests that wait, in the order of a policy's key."""

import heapq
from collections.abc import Callable, Iterator

from octavo.core.request import Request


class RequestQueue:
    """A heap with removal. What is removed from the middle leaves a stale entry, skipped when it comes up; entries
    are swept when most are stale, so that memory follows what waits."""

    def __init__(self, key: Callable[[Request], tuple[int, ...]]) -> None:
        self._key = key
        self._heap: list[tuple[tuple[int, ...], int, Request]] = []
        self._tickets: dict[Request, int] = {}
        self._next_ticket = 0

    def push(self, request: Request) -> None:
        ticket = self._next_ticket
        self._next_ticket += 1
        self._tickets[request] = ticket
        heapq.heappush(self._heap, (self._key(request), ticket, request))
        if len(self._heap) > 2 * len(self._tickets) + 64:
            self._heap = [entry for entry in self._heap if not self._is_stale(entry)]
            heapq.heapify(self._heap)

    def peek(self) -> Request | None:
        """The request that goes next."""
        while self._heap and self._is_stale(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def remove(self, request: Request) -> None:
        del self._tickets[request]

    def _is_stale(self, entry: tuple[tuple[int, ...], int, Request]) -> bool:
        return self._tickets.get(entry[2]) != entry[1]

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, request: Request) -> bool:
        return request in self._tickets

    def __iter__(self) -> Iterator[Request]:
        return iter(self._tickets)
