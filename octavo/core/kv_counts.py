"""How many blocks something takes, and which of a sequence's blocks are its own. Questions alone."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain

from octavo.core.kv_types import CacheConfig, PrefixHit
from octavo.core.pool import BlockPool
from octavo.core.table import BlockTables


class KVCounts:
    """Counts blocks of one pool; in a layer group with a window only those that a sequence has at once."""

    def __init__(self, config: CacheConfig, pool: BlockPool) -> None:
        self._config = config
        self._pool = pool
        self._block_size = config.block_size
        self._groups = range(config.num_groups)

    def taken(self, hit: PrefixHit, num_tokens: int) -> int:
        """Blocks that are free now and would not be, once a sequence that begins with ``hit`` has grown to
        ``num_tokens``."""
        num_logical, hit = -(-num_tokens // self._block_size), hit.needed(self._config)
        count = self._pool.num_unreferenced(hit.tail_ids)
        for group, live_ids in enumerate(hit.live_ids):
            most = self._config.most_blocks(group)
            grown = num_logical - self._first(group, hit.num_tokens)
            # What others hold of the hit does not come free for this sequence when it slides on.
            count += most if grown > most else grown - len(live_ids) + self._pool.num_unreferenced(live_ids)
        return count

    def owed(self, tables: BlockTables, num_tokens: int) -> int:
        """Blocks that a sequence will still take while it grows to ``num_tokens``."""
        num_logical = -(-num_tokens // self._block_size)
        if not self._config.has_windows:
            return max(0, num_logical - tables.num_blocks) * self._config.num_groups  # drafts may have got more
        return sum(
            max(0, min(num_logical - start, self._config.most_blocks(group)) - (tables.num_blocks - start))
            for group, start in enumerate(tables.starts)
        )

    def freed_by(self, sequences: Iterable[BlockTables], but: PrefixHit) -> int:
        """Blocks that would come free if all of these sequences gave theirs back, other than those of ``but``."""
        live = chain.from_iterable(tables.live_groups for tables in sequences)
        occurrences = Counter(chain.from_iterable(live))
        for block_id in chain.from_iterable((*but.live_ids, but.tail_ids)):
            del occurrences[block_id]
        return sum(self._pool.ref_counts[block_id] == count for block_id, count in occurrences.items())

    def num_named(self, tables: BlockTables, num_tokens: int) -> int:
        """Leading logical blocks, full of a sequence's first ``num_tokens`` tokens, that are in the prefix cache, or
        behind the window, in every group."""
        num_full = num_tokens // self._block_size
        return min(self._num_named(table, self._first(group, num_tokens), num_full)
                   for group, table in enumerate(tables.groups))  # fmt: skip

    def own_blocks(self, tables: BlockTables, num_tokens: int) -> list[list[int]]:
        """Of each group the blocks that hold what is needed of a sequence's first ``num_tokens`` tokens and that nobody
        could find by name."""
        first, end = self.num_named(tables, num_tokens), -(-num_tokens // self._block_size)
        return [table[max(first, self._first(group, num_tokens)) : end] for group, table in enumerate(tables.groups)]

    def _num_named(self, table: list[int], first: int, num_full: int) -> int:
        names = self._pool.names
        nameless = (index for index in range(first, num_full) if names[table[index]] is None)
        return next(nameless, num_full)

    def _first(self, group: int, num_tokens: int) -> int:
        return self._config.first_block(group, num_tokens)
