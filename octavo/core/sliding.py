"""Blocks behind a window: what a running sequence gives back because nothing reads it any more."""

from collections.abc import Iterable
from typing import NamedTuple

from octavo.core.keeping import Keeping
from octavo.core.kv_types import CacheConfig
from octavo.core.pool import BlockPool
from octavo.core.step import NO_BLOCK, TableWrite
from octavo.core.table import BlockTables


class Slide(NamedTuple):
    """The entries of one group before logical block ``end`` are behind its window."""

    tables: BlockTables
    group: int
    end: int

    @property
    def block_ids(self) -> list[int]:
        return self.tables.groups[self.group][self.tables.starts[self.group] : self.end]


class Slider:
    """Finds such blocks, and takes them. A sequence is looked at when it needs a block, so one that merely decodes
    costs nothing in between; each block is looked at once.

    What counts is what has landed: steps in flight read from there on, and if they fail the sequence goes on from
    there. So nothing has to be held for them.
    """

    def __init__(self, config: CacheConfig, pool: BlockPool, keeping: Keeping) -> None:
        self._pool = pool
        self._keeping = keeping
        self._first_block = config.first_block
        self._groups = [group for group, window in enumerate(config.windows) if window is not None]

    def due(self, sequences: Iterable[tuple[BlockTables, int]]) -> list[Slide]:
        """What these sequences can give back; with each goes the number of its tokens that have landed."""
        if not self._groups:
            return []
        return [
            Slide(tables, group, end)
            for tables, num_landed in sequences
            for group in self._groups
            if (end := self._first_block(group, num_landed)) > tables.starts[group]
        ]

    def num_freed(self, slides: list[Slide]) -> int:
        """Blocks that come free by this for sure. Changes nothing."""
        ref_counts = self._pool.ref_counts
        return sum([ref_counts[block_id] == 1 for slide in slides for block_id in slide.block_ids])

    def take(self, slides: list[Slide]) -> list[TableWrite]:
        """Give these blocks back: what is in the prefix cache stays there, evictable."""
        writes: list[TableWrite] = []
        for slide in slides:
            tables, group, end = slide
            start, block_ids = tables.starts[group], slide.block_ids
            self._keeping.retain(block_ids, tables.retention)
            self._pool.release(reversed(block_ids))
            tables.groups[group][start:end] = [NO_BLOCK] * (end - start)
            tables.starts[group] = end
            writes += [TableWrite(tables.row_id, group, index, NO_BLOCK) for index in range(start, end)]
        return writes
