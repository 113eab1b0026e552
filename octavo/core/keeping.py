"""What the prefix cache keeps for longer than its evictor would: pins, and contents of a retention priority."""

from collections.abc import Iterable
from math import inf

from octavo.core.kv_types import CacheConfig
from octavo.core.pins import Pins, PrefixNames
from octavo.core.pool import BlockPool
from octavo.core.retention import DEFAULT_PRIORITY, Retention, RetentionEvictor


class Keeping:
    """Pins and priorities of one pool. ``prefix_names``: see Pins.

    Priorities come into force with the first one that is not the default: until then the pool has its evictor as it
    was, and nobody pays for them.
    """

    def __init__(self, pool: BlockPool, config: CacheConfig, prefix_names: PrefixNames) -> None:
        self.pins = Pins(pool, config, prefix_names, self._retain)
        self._pool = pool
        self._retention: RetentionEvictor | None = None
        self._now = -inf

    def tell_time(self, now: float) -> None:
        """``now``: seconds, on a clock of the caller's. Pins and priorities end when their time is over."""
        self._now = now
        self.pins.tell_time(now)
        if self._retention is not None:
            self._retention.tell_time(now)

    def retain(self, block_ids: Iterable[int], retention: Retention | None) -> None:
        """A sequence is about to give these blocks up: what the cache keeps of them is of this priority (None: the
        default one)."""
        if self._retention is not None or retention is not None:
            self._retain(block_ids, retention or Retention())

    def _retain(self, block_ids: Iterable[int], retention: Retention) -> None:
        if self._retention is None:
            if retention.priority == DEFAULT_PRIORITY:
                return
            self._retention = RetentionEvictor(self._pool.names, self._pool.evictor)
            self._retention.tell_time(self._now)
            self._pool.evictor = self._retention
        self._retention.mark(block_ids, retention)
