"""The KV cache: which sequence owns which blocks. Look up, then commit; a commit is all or nothing."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter
from typing import NamedTuple

from octavo.core.child_index import ChildIndex
from octavo.core.disk_tier import DiskTier
from octavo.core.eviction_policies import EVICTION_POLICIES
from octavo.core.hashing import TOKEN_BYTES, BlockHasher, HashChain, group_suffix, pack_tokens
from octavo.core.host_pool import HostPool
from octavo.core.pool import BlockPool
from octavo.core.step import BlockCopy, TableWrite
from octavo.core.table import BlockTables, SwappedTables


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Size and identity of the KV memory. ``fingerprint``: see BlockHasher. ``num_host_blocks``, ``keep_evicted``: size
    of the host pool, and whether it keeps what the prefix cache evicts. ``num_disk_slots``: blocks of the disk tier."""

    num_blocks: int
    block_size: int = 16
    num_groups: int = 1
    enable_prefix_caching: bool = True
    fingerprint: bytes = b""
    num_host_blocks: int = 0
    keep_evicted: bool = False
    num_disk_slots: int = 0
    eviction_policy: str = "lru"

    @property
    def num_token_slots(self) -> int:
        """Tokens of one sequence that the whole pool could hold."""
        return self.num_blocks // self.num_groups * self.block_size


class PrefixHit(NamedTuple):
    """Tokens that need not be computed, and where they lie, one tuple of ids a layer group: in blocks of the pool, then
    in blocks of the host pool, then in slots of the disk tier, and the last of them perhaps at the head of block
    ``tail_ids[g]``, which is to be copied. Valid until the next commit."""

    num_tokens: int
    block_ids: tuple[tuple[int, ...], ...]
    host_ids: tuple[tuple[int, ...], ...] = ()
    tail_ids: tuple[int, ...] = ()
    disk_slots: tuple[tuple[int, ...], ...] = ()

    @property
    def needs_moves(self) -> bool:
        """Is some of it not on the device yet?"""
        return any(self.host_ids) or any(self.disk_slots)

    def without_tail(self, block_size: int) -> "PrefixHit":
        """The same, of whole blocks only, where the last of it would be a copy."""
        if not self.tail_ids:
            return self
        return self._replace(num_tokens=self.num_tokens - self.num_tokens % block_size, tail_ids=())


class Extension(NamedTuple):
    """What a sequence got: new table entries, and copies to make before anything is written."""

    writes: list[TableWrite]
    copies: list[BlockCopy]


class Allocation(NamedTuple):
    """The tables of a new sequence, and copies to make before anything is written."""

    tables: BlockTables
    copies: list[BlockCopy]


class FilledBlocks(NamedTuple):
    """Logical blocks ``first``, ``first`` + 1, ... of a sequence, full and landed: their names, what each follows, and
    their packed tokens."""

    first: int
    hashes: list[bytes]
    parents: list[bytes]
    packed: Sequence[bytes]


class KVCacheManager:
    """Gives blocks to sequences, shares them, and takes them back.

    Questions (``lookup_prefix``, ``num_blocks_for``, ``can_hold``) change nothing. Commits return None, with nothing
    changed, where blocks do not suffice.
    """

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.host = HostPool(config.num_host_blocks, config.keep_evicted, DiskTier(config.num_disk_slots))
        make_evictor = EVICTION_POLICIES[config.eviction_policy]
        on_evict = self.host.keep_evicted if self.host.takes_evicted else None
        self._children = ChildIndex()
        self.pool = BlockPool(config.num_blocks, make_evictor, on_evict, self._children.remove)
        self.hasher = BlockHasher(config.block_size, config.fingerprint)
        self.num_copies = 0
        self._block_size = config.block_size
        self._held: deque[tuple[int, list[int]]] = deque()

    # Questions

    def num_blocks_for(self, num_tokens: int) -> int:
        """Physical blocks, over all layer groups, that a sequence of ``num_tokens`` takes."""
        return -(-num_tokens // self.config.block_size) * self.config.num_groups

    def lookup_prefix(
        self, chain: HashChain | None, token_ids: Sequence[int], swapped: SwappedTables | None = None
    ) -> PrefixHit:
        """The longest prefix of these tokens that is there: whole blocks in the cache, on the device and then on the
        host; and after them what was ``swapped`` out of this sequence, or the head of a cached block.

        ``chain``: the hashes of the sequence's full blocks; None reads nothing from the cache. At least the last token
        is left to compute (design, Decided 4).
        """
        hashes = chain.hashes[: (len(token_ids) - 1) // self._block_size] if chain else ()
        names = [self._names(group, hashes) for group in range(self.config.num_groups)]
        chains = [self.pool.lookup_chain(group) for group in names]
        length = min(map(len, chains))
        block_ids = tuple(tuple(blocks[:length]) for blocks in chains)
        more = [self.host.pool.lookup_chain(group[length:]) for group in names] if self.host.pool.num_blocks else []
        reached = length + min(map(len, more), default=0)
        leads_on = swapped is not None and swapped.num_tokens > reached * self._block_size
        if swapped is not None and leads_on and swapped.first_block <= reached:
            return self._swapped_hit(block_ids, more, swapped)
        host_ids = tuple(tuple(blocks[: reached - length]) for blocks in more)
        slots, reached = self._lookup_on_disk(names, reached)
        tail_ids, num_tail_tokens = self._lookup_tail(chain, token_ids, reached) if chain else ((), 0)
        return PrefixHit(reached * self._block_size + num_tail_tokens, block_ids, host_ids, tail_ids, slots)

    def _lookup_on_disk(
        self, names: Sequence[Sequence[bytes]], reached: int
    ) -> tuple[tuple[tuple[int, ...], ...], int]:
        """Slots of the disk tier, one tuple a group, that hold the blocks from ``reached`` on, and where they end."""
        pool = self.host.disk.pool
        chains = [pool.lookup_chain(group[reached:]) for group in names] if pool.num_named else []
        length = min(map(len, chains), default=0)
        return tuple(tuple(chain[:length]) for chain in chains), reached + length

    def _lookup_tail(self, chain: HashChain, token_ids: Sequence[int], index: int) -> tuple[tuple[int, ...], int]:
        """Blocks, one a group, that hold the most leading tokens of logical block ``index``, and how many. Where a salt
        enters with that block, what others have is of use only as far as the sequence's own tokens are open."""
        start = index * self._block_size
        wanted = token_ids[start : min(start + self._block_size, len(token_ids) - 1)]
        sources = ((chain.parents[index], wanted), (chain.open_parent(index), wanted[: chain.num_open_in_block]))
        matches = [match for parent, head in sources if parent and (match := self._children.best(parent, head))]
        best = max(matches, key=attrgetter("num_tokens"), default=None)
        if best is None:
            return (), 0
        found = [
            self.pool.lookup(name)
            for group in range(self.config.num_groups)
            for name in self._names(group, [best.block_hash])
        ]
        tail_ids = tuple(block_id for block_id in found if block_id is not None)
        return (tail_ids, best.num_tokens) if len(tail_ids) == len(found) else ((), 0)

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
        woken = sum(self.pool.num_unreferenced(ids) for ids in (*hit.block_ids, hit.tail_ids))
        return new + woken + spare <= self.pool.num_free

    def num_named_tokens(self, tables: BlockTables, num_tokens: int) -> int:
        """How many of a sequence's first ``num_tokens`` tokens lie in blocks of the prefix cache."""
        return self._num_named(tables, num_tokens) * self._block_size

    def num_own_blocks(self, tables: BlockTables, num_tokens: int) -> int:
        """Physical blocks that ``save`` would move."""
        return self.num_blocks_for(num_tokens) - self._num_named(tables, num_tokens) * self.config.num_groups

    def frees_blocks(self, tables: BlockTables) -> bool:
        """Would any block come free if this sequence gave its own back?"""
        ref_counts = self.pool.ref_counts
        return any(ref_counts[block_id] == 1 for table in tables.groups for block_id in table)

    @property
    def held_blocks(self) -> list[int]:
        """Blocks held for steps in flight, one entry a hold."""
        return [block_id for _, block_ids in self._held for block_id in block_ids]

    # Commits

    def allocate(self, hit: PrefixHit, num_tokens: int, row_id: int, step_id: int) -> Allocation | None:
        """Tables for a new sequence: the hit's blocks, shared, brought in from host or disk or copied, and fresh ones
        up to ``num_tokens``. Copied-from blocks are held until ``step_id`` lands."""
        if not self.can_hold(hit, num_tokens):
            return None
        tables = BlockTables(self.config.num_groups, row_id)
        for table, block_ids in zip(tables.groups, hit.block_ids, strict=True):
            self.pool.acquire(block_ids)
            table.extend(block_ids)
        self.pool.acquire(hit.tail_ids)
        for host_ids in hit.host_ids:  # before fresh blocks push others out to the host
            self.host.pool.acquire(host_ids)
        for slots in hit.disk_slots:
            self.host.disk.pool.acquire(slots)
        num_blocks = -(-num_tokens // self._block_size)
        for table in tables.groups:
            table.extend(self.pool.allocate(num_blocks - len(table)))
        for table, block_ids, host_ids in zip(tables.groups, hit.block_ids, hit.host_ids, strict=False):
            self.host.give(host_ids, table[len(block_ids) : len(block_ids) + len(host_ids)])
        for group, slots in enumerate(hit.disk_slots):
            first = sum(len(run[group]) for run in (hit.block_ids, hit.host_ids) if run)
            self.host.disk.give(slots, tables.groups[group][first : first + len(slots)])
        copies = []
        if hit.tail_ids:
            index = hit.num_tokens // self._block_size
            copies = [
                BlockCopy(source, table[index]) for source, table in zip(hit.tail_ids, tables.groups, strict=True)
            ]
            for block_id in hit.tail_ids:  # one a group: no chain
                self._release_after(step_id, [block_id])
        tables.capacity = num_blocks * self._block_size
        return Allocation(tables, copies)

    def save(self, tables: BlockTables, num_tokens: int) -> SwappedTables | None:
        """Swap the first ``num_tokens`` tokens of a sequence out, those that are in no named block: these stay in the
        prefix cache (design, Decided 7). The caller frees the tables. None where the host has no room."""
        first, end = self._num_named(tables, num_tokens), -(-num_tokens // self._block_size)
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
        writes: list[TableWrite] = []
        row_ids = [tables.row_id for tables in sequences]
        for group in range(self.config.num_groups):
            block_ids = self.pool.allocate(len(sequences))
            grown = [tables.groups[group] for tables in sequences]
            writes += map(TableWrite, row_ids, repeat(group), map(len, grown), block_ids)
            for table, block_id in zip(grown, block_ids, strict=True):
                table.append(block_id)
        for tables in sequences:
            tables.capacity += self._block_size
        return writes

    def publish(self, tables: BlockTables, filled: FilledBlocks, held_for: int | None) -> list[TableWrite]:
        """Enter blocks of a sequence in the prefix cache.

        Where the same contents are cached already, the sequence takes the cached block and gives its own back (the
        bits are the same), so that a parent never leaves the cache before its children. Its own is held until step
        ``held_for`` lands, if steps that read it are in flight.
        """
        writes: list[TableWrite] = []
        for group, table in enumerate(tables.groups):
            block_ids = table[filled.first : filled.first + len(filled.hashes)]
            for own, kept in self.pool.publish(block_ids, self._names(group, filled.hashes)):
                index = table.index(own)
                table[index] = kept
                writes.append(TableWrite(tables.row_id, group, index, kept))
                self.pool.acquire([kept])
                self._release_after(held_for, [own])
        self._children.add(filled.parents, filled.hashes, filled.packed)
        return writes

    def publish_tail(self, tables: BlockTables, chain: HashChain, token_ids: Sequence[int], num_tokens: int) -> None:
        """Enter the block that holds the last of ``num_tokens`` landed tokens in the prefix cache, if it is not full.
        Its sequence may go on writing after them."""
        index = num_tokens // self._block_size
        tail = pack_tokens(token_ids[index * self._block_size : num_tokens])
        if not tail:
            return
        block_hash = self.hasher.hash_tail(chain.parents[index], tail)
        for group, table in enumerate(tables.groups):
            self.pool.publish_tail(table[index], *self._names(group, [block_hash]))
        if self.pool.lookup(block_hash) is not None:
            self._children.add([chain.parents[index]], [block_hash], [tail])
            self.open_head(chain, index, tail, block_hash)

    def open_head(self, chain: HashChain, index: int, packed: bytes, block_hash: bytes) -> None:
        """Let all find the first tokens of a published block that are open to all, though the block is not."""
        parent = chain.open_parent(index)
        if parent is not None and chain.num_open_in_block:
            self._children.add_head(parent, block_hash, packed[: chain.num_open_in_block * TOKEN_BYTES])

    def _names(self, group: int, hashes: Sequence[bytes]) -> Sequence[bytes]:
        """What the pool calls these contents, as layer group ``group`` has them (design, Decided 6)."""
        if group == 0:
            return hashes
        suffix = group_suffix(group)
        return [block_hash + suffix for block_hash in hashes]

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

    def store_cached(self) -> None:
        """Give all of the prefix cache up that is in memory and that nobody uses, to the disk tier."""
        host_ids = self.host.pool.allocate(self.host.pool.num_free)  # so that none goes from the device to the host
        self.pool.release(self.pool.allocate(self.pool.num_free))
        self.host.pool.release(host_ids)

    def forget_cached(self) -> None:
        """Empty the prefix cache, the host's part too."""
        self.pool.forget_all()
        self._children.clear()
        self.host.forget_cached()

    def land(self, step_id: int) -> None:
        """A step has landed: blocks held for it, or for steps before it, come back."""
        while self._held and self._held[0][0] <= step_id:
            self.pool.release(self._held.popleft()[1])
        self.host.land(step_id)

    def _num_named(self, tables: BlockTables, num_tokens: int) -> int:
        """Leading logical blocks, full of a sequence's first ``num_tokens`` tokens, that are in the prefix cache in
        every group."""
        names, num_full = self.pool.names, num_tokens // self._block_size
        return min(
            next((index for index, block_id in enumerate(table[:num_full]) if names[block_id] is None), num_full)
            for table in tables.groups
        )

    def _shared_tail(self, tables: BlockTables) -> list[tuple[int, int]]:
        """(group, logical block) of the blocks past the table's capacity that others share. A hold is no sharer: a step
        makes its copies before anything is written."""
        first, held = tables.capacity // self._block_size, Counter(self.held_blocks)
        return [
            (group, index)
            for group, table in enumerate(tables.groups)
            for index in range(first, len(table))
            if self.pool.ref_counts[table[index]] - held[table[index]] > 1
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
