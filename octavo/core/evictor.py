"""The order in which cached blocks that nobody references are given up."""

from collections import OrderedDict
from typing import Protocol


class Evictor(Protocol):
    """Holds the ids of blocks that are cached and have no references. Every call is O(1) or O(log n)."""

    def add(self, block_id: int) -> None:
        """The last reference to a cached block was dropped."""
        ...

    def remove(self, block_id: int) -> None:
        """The block is referenced again (a prefix hit) or lost its hash."""
        ...

    def evict(self, count: int) -> list[int]:
        """Give up the ``count`` blocks that are worth least, those first; the caller drops their hashes."""
        ...

    def __len__(self) -> int: ...

    def __contains__(self, block_id: int) -> bool: ...


class LRUEvictor:
    """Least recently used, leaf first.

    A table is released tail first and every hit touches the whole chain from its root, so a parent always stands
    behind its children in the queue: leaves go first without a tree being kept. An ordered dict earns its place by
    taking from the middle (a hit) and from the front (an eviction) in O(1).
    """

    def __init__(self) -> None:
        self._queue: OrderedDict[int, None] = OrderedDict()

    def add(self, block_id: int) -> None:
        self._queue[block_id] = None

    def remove(self, block_id: int) -> None:
        del self._queue[block_id]

    def evict(self, count: int) -> list[int]:
        pop = self._queue.popitem
        return [pop(last=False)[0] for _ in range(count)]

    def __len__(self) -> int:
        return len(self._queue)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._queue
