"""Recency until another order of eviction has proved, beside it, that it hits more."""

from collections.abc import Iterable, Sequence

from octavo.core.eviction_reuse import ReuseEvictor
from octavo.core.evictor import LRUEvictor
from octavo.core.name_cache import NameCache

MIN_LEAD = 0.05
"""Share of what recency hits that the other order must hit more before it is trusted."""
DEVIATIONS_TO_TRUST = 3.0
DEVIATIONS_TO_KEEP = 1.0
"""How far from chance its lead must be: in standard deviations of the sum of the leads of single chains."""
MEMORY = 8
"""The past counts half after so many times the pool's blocks have been released."""


class Trial:
    """Two caches that hold names only and see all that is released, one by recency, the other by ``ReuseEvictor``.

    A lead is judged by how much single chains differ, for hits come in clumps: where a conversation of fifty blocks is
    hit or not, a lead of fifty is chance. So a load that favours neither is left to recency.
    """

    def __init__(self, num_blocks: int) -> None:
        self.is_won = False
        """May blocks go by reuse?"""
        self._recency = NameCache(num_blocks, LRUEvictor)
        self._reuse = NameCache(num_blocks, ReuseEvictor)
        self._half_life = MEMORY * num_blocks
        self._num_released = 0  # since the past was last halved
        self._lead = self._squares = self._num_hits = 0.0

    def release(self, names: Sequence[bytes], num_cached: int) -> None:
        """A chain with these names, root first, was released; the real cache now holds ``num_cached`` blocks."""
        num_hits = self._recency.serve(names, num_cached)
        lead = self._reuse.serve(names, num_cached) - num_hits
        self._forget_some(len(names))
        self._num_hits += num_hits
        self._lead += lead
        self._squares += lead * lead
        deviation: float = self._squares**0.5
        if self.is_won:
            self.is_won = self._lead >= DEVIATIONS_TO_KEEP * deviation
        else:
            self.is_won = self._lead > max(DEVIATIONS_TO_TRUST * deviation, MIN_LEAD * self._num_hits)

    def _forget_some(self, num_released: int) -> None:
        self._num_released += num_released
        if self._num_released >= self._half_life:
            self._num_released = 0
            self._lead, self._squares, self._num_hits = self._lead / 2, self._squares / 2, self._num_hits / 2


class TrialEvictor:
    """By recency, or by learned rates of reuse while these are ahead in a ``Trial``: both leaf first. What is learned
    of the real cache is learned under either."""

    def __init__(self, names: Sequence[bytes | None]) -> None:
        """``names``: the contents of each block of the pool by id, as the pool keeps them up to date."""
        self._names = names
        self._reuse = ReuseEvictor(names)
        self._trial = Trial(len(names))

    def add(self, block_ids: Iterable[int], above: Sequence[int] = ()) -> None:
        chain = list(block_ids)
        self._reuse.add(chain, above)
        names = [name for name in map(self._names.__getitem__, reversed(chain)) if name is not None]
        self._trial.release(names, len(self._reuse))

    def remove(self, block_ids: Iterable[int]) -> None:
        self._reuse.remove(block_ids)

    def evict(self, count: int) -> list[int]:
        return self._reuse.evict(count) if self._trial.is_won else self._reuse.evict_least_recent(count)

    def __len__(self) -> int:
        return len(self._reuse)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._reuse
