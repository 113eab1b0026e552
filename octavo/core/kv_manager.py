"""The KV cache: which sequence owns which blocks. Look up, then commit; a commit is all or nothing."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from octavo.core.evictor import Evictor
from octavo.core.hashing import BlockHasher
from octavo.core.host_pool import HostPool
from octavo.core.pool import BlockPool
from octavo.core.step import BlockCopy, TableWrite
from octavo.core.table import BlockTables, SwappedTables


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Size and identity of the KV memory. ``fingerprint``: see BlockHasher. ``num_host_blocks``, ``keep_evicted``: size
    of the host pool, and whether it keeps what the prefix cache evicts."""

    num_blocks: int
    block_size: int = 16
    num_groups: int = 1
    enable_prefix_caching: bool = True
    fingerprint: bytes = b""
    num_host_blocks: int = 0
    keep_evicted: bool = False

    @property
    def num_token_slots(self) -> int:
        """Tokens of one sequence that the whole pool could hold."""
        return self.num_blocks // self.num_groups * self.block_size


class PrefixHit(NamedTuple):
    """Tokens that need not be computed, and where they lie, one tuple of ids a layer group: in blocks of the pool, then
    in blocks of the host pool. Valid until the next commit."""

    num_tokens: int
    block_ids: tuple[tuple[int, ...], ...]
    host_ids: tuple[tuple[int, ...], ...]


class Extension(NamedTuple):
    """What a sequence got: new table entries, and copies to make before anything is written."""

    writes: list[TableWrite]
    copies: list[BlockCopy]


class FilledBlock(NamedTuple):
    """Logical block ``logical_block`` of a sequence has landed, full, with these contents."""

    tables: BlockTables
    logical_block: int
    block_hash: bytes


class KVCacheManager:
    """Gives blocks to sequences, shares them, and takes them back.

    Questions (``lookup_prefix``, ``num_blocks_for``, ``can_hold``) change nothing. Commits return None, with nothing
    changed, where blocks do not suffice.
    """

    def __init__(self, config: CacheConfig, evictor: Evictor | None = None) -> None:
        self.config = config
        self.host = HostPool(config.num_host_blocks, config.keep_evicted)
        self.pool = BlockPool(config.num_blocks, evictor, self.host.keep_evicted if self.host.keeps_evicted else None)
        self.hasher = BlockHasher(config.block_size, config.fingerprint)
        self.num_copies = 0
        self._suffixes = [group.to_bytes(1, "little") for group in range(config.num_groups)]
        self._block_size = config.block_size
        self._held: deque[tuple[int, list[int]]] = deque()

    # Questions

    def num_blocks_for(self, num_tokens: int) -> int:
        """Physical blocks, over all layer groups, that a sequence of ``num_tokens`` takes."""
        return -(-num_tokens // self.config.block_size) * self.config.num_groups

    def lookup_prefix(
        self, hashes: Sequence[bytes], num_tokens: int, swapped: SwappedTables | None = None
    ) -> PrefixHit:
        """The longest prefix that is there, of a sequence with these block hashes: whole blocks in the cache, on the
        device and then on the host, and after them what was ``swapped`` out of it.

        At least the last of its ``num_tokens`` tokens is left to compute (design, Decided 4).
        """
        limit = min(len(hashes), (num_tokens - 1) // self._block_size)
        names = [self._names(group, hashes[:limit]) for group in range(self.config.num_groups)]
        chains = [self.pool.lookup_chain(group) for group in names]
        length = min(map(len, chains))
        block_ids = tuple(tuple(chain[:length]) for chain in chains)
        more = [self.host.pool.lookup_chain(group[length:]) for group in names] if self.host.pool.num_blocks else []
        reached = length + min(map(len, more), default=0)
        if swapped is None or swapped.first_block > reached:
            host_ids = tuple(tuple(chain[: reached - length]) for chain in more)
            return PrefixHit(reached * self._block_size, block_ids, host_ids)
        return self._swapped_hit(block_ids, more, swapped)

    def _swapped_hit(
        self, block_ids: tuple[tuple[int, ...], ...], more: Sequence[list[int]], swapped: SwappedTables
    ) -> PrefixHit:
        """All of a sequence that was swapped out: its cached blocks, on the device and then (``more``) on the host, and
        its own."""
        own = max(swapped.first_block, len(block_ids[0]))
        chains = zip(more, swapped.host_ids, strict=True)
        host_ids = tuple(
            (*cached[: own - len(block_ids[0])], *kept[own - swapped.first_block :]) for cached, kept in chains
        )
        return PrefixHit(swapped.num_tokens, block_ids, host_ids)

    def can_hold(self, hit: PrefixHit, num_tokens: int, spare: int = 0) -> bool:
        """Would ``num_tokens``, of which ``hit`` is cached, fit and leave ``spare`` blocks free?"""
        new = self.num_blocks_for(num_tokens) - sum(map(len, hit.block_ids))
        woken = sum(self.pool.num_unreferenced(ids) for ids in hit.block_ids)
        return new + woken + spare <= self.pool.num_free

    def num_named_tokens(self, tables: BlockTables, num_tokens: int) -> int:
        """How many of a sequence's first ``num_tokens`` tokens lie in blocks of the prefix cache."""
        return min(num_tokens, self._num_named(tables) * self._block_size)

    def num_own_blocks(self, tables: BlockTables, num_tokens: int) -> int:
        """Physical blocks that ``save`` would move."""
        return self.num_blocks_for(num_tokens) - self._num_named(tables) * self.config.num_groups

    def frees_blocks(self, tables: BlockTables) -> bool:
        """Would any block come free if this sequence gave its own back?"""
        ref_counts = self.pool.ref_counts
        return any(ref_counts[block_id] == 1 for table in tables.groups for block_id in table)

    @property
    def held_blocks(self) -> list[int]:
        """Blocks held for steps in flight, one entry a hold."""
        return [block_id for _, block_ids in self._held for block_id in block_ids]

    # Commits

    def allocate(self, hit: PrefixHit, num_tokens: int, row_id: int) -> BlockTables | None:
        """Tables for a new sequence: the hit's blocks, shared or brought in from the host, and fresh ones up to
        ``num_tokens``."""
        if not self.can_hold(hit, num_tokens):
            return None
        tables = BlockTables(self.config.num_groups, row_id)
        for table, block_ids in zip(tables.groups, hit.block_ids, strict=True):
            self.pool.acquire(block_ids)
            table.extend(block_ids)
        for host_ids in hit.host_ids:  # before fresh blocks push others out to the host
            self.host.pool.acquire(host_ids)
        num_blocks = -(-num_tokens // self._block_size)
        for table in tables.groups:
            table.extend(self.pool.allocate(num_blocks - len(table)))
        for table, block_ids, host_ids in zip(tables.groups, hit.block_ids, hit.host_ids, strict=False):
            self.host.give(host_ids, table[len(block_ids) : len(block_ids) + len(host_ids)])
        tables.capacity = num_blocks * self._block_size
        return tables

    def save(self, tables: BlockTables, num_tokens: int) -> SwappedTables | None:
        """Swap the first ``num_tokens`` tokens of a sequence out, those that are in no named block: these stay in the
        prefix cache (design, Decided 7). The caller frees the tables. None where the host has no room."""
        first, end = self._num_named(tables), -(-num_tokens // self._block_size)
        own = [block_id for table in tables.groups for block_id in table[first:end]]
        host_ids = self.host.take(own)
        if host_ids is None:
            return None
        count = end - first
        parts = tuple(host_ids[group * count : (group + 1) * count] for group in range(self.config.num_groups))
        return SwappedTables(num_tokens, first, parts)

    def drop_swapped(self, swapped: SwappedTables) -> None:
        """A sequence that was swapped out runs again, or never will."""
        for host_ids in swapped.host_ids:
            self.host.pool.release(reversed(host_ids))

    def extend(self, tables: BlockTables, num_tokens: int, step_id: int) -> Extension | None:
        """Make positions ``tables.capacity`` .. ``num_tokens - 1`` writable: fresh blocks at the end, and copies of
        blocks in between that others share (copy-on-write). Copied-from blocks are held until ``step_id`` lands."""
        have = len(tables.groups[0])
        num_missing = max(0, -(-num_tokens // self._block_size) - have)
        shared = self._shared_tail(tables) if tables.capacity < have * self._block_size else []
        if len(shared) + num_missing * len(tables.groups) > self.pool.num_free:
            return None
        writes, copies = self._unshare(tables, shared, step_id) if shared else ([], [])
        writes += self._append_blocks(tables, num_missing)
        return Extension(writes, copies)

    def append_block(self, sequences: list[BlockTables]) -> list[TableWrite] | None:
        """One more block (in each layer group) for each of these sequences, whose blocks are full and their own: what
        many decoding sequences need at once."""
        count = len(sequences) * self.config.num_groups
        if count > self.pool.num_free:
            return None
        fresh = iter(self.pool.allocate(count))
        writes = []
        for group in range(self.config.num_groups):
            for tables in sequences:
                table, block_id = tables.groups[group], next(fresh)
                writes.append(TableWrite(tables.row_id, group, len(table), block_id))
                table.append(block_id)
        for tables in sequences:
            tables.capacity += self._block_size
        return writes

    def publish(
        self, tables: BlockTables, first: int, hashes: Sequence[bytes], held_for: int | None
    ) -> list[TableWrite]:
        """Enter logical blocks ``first``, ``first`` + 1, ..., full and landed, in the prefix cache under ``hashes``.

        Where the same contents are cached already, the sequence takes the cached block and gives its own back (the
        bits are the same), so that a parent never leaves the cache before its children. Its own is held until step
        ``held_for`` lands, if steps that read it are in flight.
        """
        writes: list[TableWrite] = []
        for group, table in enumerate(tables.groups):
            for own, kept in self.pool.publish(table[first : first + len(hashes)], self._names(group, hashes)):
                writes.append(self._take_kept(tables, group, table.index(own), kept))
                self._release_after(held_for, [own])
        return writes

    def publish_each(self, filled: Sequence[FilledBlock], held_for: int | None) -> list[TableWrite]:
        """The same for one block of each of many sequences."""
        writes: list[TableWrite] = []
        hashes = [block_hash for _, _, block_hash in filled]
        for group in range(self.config.num_groups):
            block_ids = [tables.groups[group][index] for tables, index, _ in filled]
            for own, kept in self.pool.publish(block_ids, self._names(group, hashes)):
                tables, index, _ = filled[block_ids.index(own)]
                writes.append(self._take_kept(tables, group, index, kept))
                self._release_after(held_for, [own])
        return writes

    def _names(self, group: int, hashes: Sequence[bytes]) -> Sequence[bytes]:
        """What the pool calls these contents, as layer group ``group`` has them (design, Decided 6)."""
        if group == 0:
            return hashes
        suffix = self._suffixes[group]
        return [block_hash + suffix for block_hash in hashes]

    def _take_kept(self, tables: BlockTables, group: int, index: int, kept: int) -> TableWrite:
        """Put block ``kept`` into the table in place of one with the same contents."""
        tables.groups[group][index] = kept
        self.pool.acquire([kept])
        return TableWrite(tables.row_id, group, index, kept)

    def fork(self, tables: BlockTables, num_tokens: int, row_id: int) -> BlockTables:
        """A second sequence that shares every block of this one, which has ``num_tokens`` tokens in the last of them.

        Whichever of the two writes into a shared tail first gets a copy of it (see ``extend``).
        """
        child = BlockTables(self.config.num_groups, row_id)
        for table, parent in zip(child.groups, tables.groups, strict=True):
            table.extend(parent)
            self.pool.acquire(table)
        child.capacity = num_tokens - num_tokens % self._block_size
        tables.capacity = min(tables.capacity, child.capacity)
        return child

    def free(self, tables: BlockTables) -> None:
        """Give every block of a sequence back, tail first."""
        for table in tables.groups:
            self.pool.release(reversed(table))
            table.clear()
        tables.capacity = 0

    def forget_cached(self) -> None:
        """Empty the prefix cache, the host's part too."""
        self.pool.forget_all()
        self.host.forget_cached()

    def land(self, step_id: int) -> None:
        """A step has landed: blocks held for it, or for steps before it, come back."""
        while self._held and self._held[0][0] <= step_id:
            self.pool.release(self._held.popleft()[1])
        self.host.land(step_id)

    def _num_named(self, tables: BlockTables) -> int:
        """Leading logical blocks that are in the prefix cache, in every group."""
        names = self.pool.names
        return min(
            next((index for index, block_id in enumerate(table) if names[block_id] is None), len(table))
            for table in tables.groups
        )

    def _shared_tail(self, tables: BlockTables) -> list[tuple[int, int]]:
        """(group, logical block) of the blocks past the table's capacity that others share. A hold is no sharer: a step
        makes its copies before anything is written."""
        first, held = tables.capacity // self._block_size, self.held_blocks
        return [
            (group, index)
            for group, table in enumerate(tables.groups)
            for index in range(first, len(table))
            if self.pool.ref_counts[table[index]] - held.count(table[index]) > 1
        ]

    def _append_blocks(self, tables: BlockTables, count: int) -> list[TableWrite]:
        writes: list[TableWrite] = []
        start = len(tables.groups[0])
        for group, table in enumerate(tables.groups):
            for block_id in self.pool.allocate(count):
                writes.append(TableWrite(tables.row_id, group, len(table), block_id))
                table.append(block_id)
        tables.capacity = (start + count) * self._block_size
        return writes

    def _unshare(
        self, tables: BlockTables, shared: list[tuple[int, int]], step_id: int
    ) -> tuple[list[TableWrite], list[BlockCopy]]:
        writes, copies = [], []
        for group, index in shared:
            source = tables.groups[group][index]
            (target,) = self.pool.allocate(1)
            tables.groups[group][index] = target
            writes.append(TableWrite(tables.row_id, group, index, target))
            copies.append(BlockCopy(source, target))
            self._release_after(step_id, [source])
        self.num_copies += len(copies)
        return writes, copies

    def _release_after(self, step_id: int | None, block_ids: list[int]) -> None:
        if step_id is None:
            self.pool.release(block_ids)
        else:
            self._held.append((step_id, block_ids))
