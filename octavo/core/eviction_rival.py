"""A cache by recency that is only kept in mind, to hold another order of eviction to."""

from collections import OrderedDict
from collections.abc import Sequence

TOLERANCE = 0.005
"""Share of the hits by recency that the other order may fall short of."""
MAX_CREDIT = 1 / 8
"""Hits, as a share of the pool's blocks, that the other order begins with and may have in hand at most, and as many
that it may owe: enough to learn from, while past success does not pay for a long failure, nor past failure for ever."""


class RecencyRival:
    """Says whether an order of eviction may go on, judged by what least recently used would have hit.

    It holds names only: of each chain that is released, those that a cache of the same size would still hold by
    recency, leaf first. What the order hits is credited, what recency would have hit (less a tolerance) is charged;
    with the account overdrawn it is recency's turn. Then both hit about the same, the tolerance pays the debt off, and
    the order may try again. So it falls short of recency by the tolerance and the credit, and by what it takes to
    fill the cache by recency again.
    """

    def __init__(self, num_blocks: int) -> None:
        self._names: OrderedDict[bytes, None] = OrderedDict()
        self._max_credit = num_blocks * MAX_CREDIT
        self._credit = self._max_credit

    @property
    def is_ahead(self) -> bool:
        """Is it recency's turn?"""
        return self._credit < 0

    def release(self, names: Sequence[bytes], num_hits: int, num_cached: int) -> None:
        """A chain with these names, tail first, was released. ``num_hits`` of its blocks had been found in the real
        cache, which now holds ``num_cached``."""
        cached = self._names
        num_rival_hits = 0
        for name in names:
            if name in cached:
                num_rival_hits += 1
                cached.move_to_end(name)
            else:
                cached[name] = None
        for _ in range(len(cached) - num_cached):
            cached.popitem(last=False)
        gained = num_hits - (1 - TOLERANCE) * num_rival_hits
        self._credit = max(-self._max_credit, min(self._max_credit, self._credit + gained))
