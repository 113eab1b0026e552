"""The order in which cached blocks that nobody references are given up."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Protocol


class Evictor(Protocol):
    """Holds the ids of blocks that are cached and have no references. Every call is O(1) or O(log n) a block."""

    def add(self, block_ids: Iterable[int], above: Sequence[int] = ()) -> None:
        """The last references to these cached blocks were dropped, in this order: children before their parents, all
        of one chain. ``above``: the blocks that they follow in it and that others still reference, nearest first."""
        ...

    def remove(self, block_ids: Iterable[int]) -> None:
        """These blocks are referenced again (a prefix hit)."""
        ...

    def evict(self, count: int) -> list[int]:
        """Give up the ``count`` blocks that are worth least, those first; the caller drops their hashes."""
        ...

    def __len__(self) -> int: ...

    def __contains__(self, block_id: int) -> bool: ...


MakeEvictor = Callable[[Sequence[bytes | None]], Evictor]
"""Makes the evictor of a pool from the names of its blocks' contents by id, which the pool keeps up to date."""


class LRUEvictor:
    """Least recently used, leaf first.

    A table is released tail first and every hit touches the whole chain from its root, so a parent always stands
    behind its children in the queue: leaves go first without a tree being kept. An ordered dict earns its place by
    taking from the middle (a hit) and from the front (an eviction) in O(1).
    """

    def __init__(self, _names: Sequence[bytes | None] = ()) -> None:
        """Recency alone counts: what the blocks hold does not."""
        self._queue: OrderedDict[int, None] = OrderedDict()

    def add(self, block_ids: Iterable[int], above: Sequence[int] = ()) -> None:
        queue = self._queue
        for block_id in block_ids:
            queue[block_id] = None

    def remove(self, block_ids: Iterable[int]) -> None:
        queue = self._queue
        for block_id in block_ids:
            del queue[block_id]

    def evict(self, count: int) -> list[int]:
        evicted = list(islice(self._queue, count))
        self.remove(evicted)
        return evicted

    def __len__(self) -> int:
        return len(self._queue)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._queue
