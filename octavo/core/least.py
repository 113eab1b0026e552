"""The one with the smallest key of many whose keys mostly grow, without a look at all of them."""

import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K", float, tuple[float, int])


class Least(Generic[K]):
    """Names by ``key_of``, which tells a name's key as it is now, or None of one that counts no more.

    A key that has grown since it was noted stands too early in the heap, so it is looked at, and put where it belongs,
    when its turn comes. A name that is new, or whose key has shrunk, has to be noted.
    """

    def __init__(self, key_of: Callable[[str], K | None]) -> None:
        self._key_of: Callable[[str], K | None] = key_of
        self._heap: list[tuple[K, str]] = []
        self._limit = 64

    def note(self, name: str, key: K) -> None:
        """``name`` has this key now, or will have once it counts."""
        if len(self._heap) >= self._limit:
            self._tidy()
        heapq.heappush(self._heap, (key, name))

    def first(self) -> str | None:
        """The name with the smallest key; None: there is none."""
        heap = self._heap
        while heap:
            noted, name = heap[0]
            key = self._key_of(name)
            if key == noted:
                return name
            if key is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (key, name))
        return None

    def _tidy(self) -> None:
        """Each name once, and none of those that do not count."""
        keys = {name: self._key_of(name) for _, name in self._heap}
        self._heap = [(key, name) for name, key in keys.items() if key is not None]
        heapq.heapify(self._heap)
        self._limit = 64 + 2 * len(self._heap)
