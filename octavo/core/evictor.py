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

    def evict(self) -> int:
        """Give up the block that is worth least; the caller drops its hash."""
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

    def evict(self) -> int:
        return self._queue.popitem(last=False)[0]

    def __len__(self) -> int:
        return len(self._queue)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._queue
