"""The KV cache: which sequence owns which blocks. Look up, then commit; a commit is all or nothing."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import islice, repeat, takewhile

from octavo.core.block_states import BlockStates, block_states
from octavo.core.child_index import ChildIndex
from octavo.core.disk_tier import DiskTier
from octavo.core.eviction_policies import EVICTION_POLICIES
from octavo.core.hashing import TOKEN_BYTES, BlockHasher, HashChain, group_names, pack_tokens
from octavo.core.host_pool import HostPool
from octavo.core.keeping import Keeping
from octavo.core.kv_counts import KVCounts
from octavo.core.kv_types import Allocation, CacheConfig, Extension, FilledBlocks, PrefixHit
from octavo.core.pool import BlockPool
from octavo.core.prefix_lookup import PrefixLookup
from octavo.core.sliding import Slider
from octavo.core.step import NO_BLOCK, BlockCopy, TableWrite
from octavo.core.table import BlockTables, SwappedTables


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
        self.keeping = Keeping(self.pool, config, self.prefix_names)
        self.num_copies = 0
        self._prefixes = PrefixLookup(config, self.pool, self.host, self._children)
        self._counts = KVCounts(config, self.pool)
        self._slider = Slider(config, self.pool, self.keeping)
        self._block_size = config.block_size
        self._held: deque[tuple[int, list[int]]] = deque()

    # Questions

    def num_blocks_for(self, num_tokens: int) -> int:
        """Physical blocks, over all layer groups, that a sequence takes at most while it grows to ``num_tokens``."""
        return self.config.num_blocks_for(num_tokens)

    def num_owed_blocks(self, tables: BlockTables, num_tokens: int) -> int:
        """Blocks that a sequence will still take while it grows to ``num_tokens``."""
        return self._counts.owed(tables, num_tokens)

    def lookup_prefix(
        self, chain: HashChain | None, token_ids: Sequence[int], swapped: SwappedTables | None = None
    ) -> PrefixHit:
        """The longest prefix of these tokens that need not be computed: see ``PrefixLookup.longest``."""
        return self._prefixes.longest(chain, token_ids, swapped)

    def may_reach(self, chain: HashChain, num_tokens: int) -> bool:
        """Can a prefix of so many tokens be there? See ``PrefixLookup.may_reach``."""
        return self._prefixes.may_reach(chain, num_tokens)

    def can_hold(self, hit: PrefixHit, num_tokens: int, spare: int = 0) -> bool:
        """Would a sequence that grows to ``num_tokens``, of which ``hit`` is cached, fit and leave ``spare`` blocks
        free?"""
        all_blocks = self.num_blocks_for(num_tokens)
        if all_blocks + len(hit.tail_ids) + spare <= self.pool.num_free:  # even if none of the hit is in use
            return True
        return self._counts.taken(hit, num_tokens) + spare <= self.pool.num_free

    def num_taken(self, hit: PrefixHit, num_tokens: int) -> int:
        """Blocks that are free now and would not be, once a sequence that begins with ``hit`` has ``num_tokens``."""
        return self._counts.taken(hit, num_tokens)

    def num_named_tokens(self, tables: BlockTables, num_tokens: int) -> int:
        """How many of a sequence's first ``num_tokens`` tokens lie in blocks of the prefix cache, or behind the windows
        of all groups."""
        return self._counts.num_named(tables, num_tokens) * self._block_size

    def num_own_blocks(self, tables: BlockTables, num_tokens: int) -> int:
        """Physical blocks that ``save`` would move."""
        return sum(map(len, self._counts.own_blocks(tables, num_tokens)))

    def num_exclusive_blocks(self, tables: BlockTables) -> int:
        """Blocks that would come free if this sequence gave its own back."""
        ref_counts = self.pool.ref_counts
        return sum([ref_counts[block_id] for block_id in table].count(1) for table in tables.live_groups)

    def num_shared_tokens(self, tables: BlockTables) -> int:
        """Leading tokens of a sequence that lie in blocks of others, too."""
        ref_counts = self.pool.ref_counts
        shared = (takewhile(lambda block_id: ref_counts[block_id] > 1, table) for table in tables.live_groups)
        return self._block_size * min(
            start + sum(1 for _ in blocks) for start, blocks in zip(tables.starts, shared, strict=True)
        )

    def num_due_copies(self, sequences: Iterable[BlockTables]) -> int:
        """Blocks that it takes to let each of these write after its capacity: the last one that shares a block writes
        in place."""
        writers = Counter(
            tables.groups[group][index]
            for tables in sequences
            if tables.capacity < tables.num_blocks * self._block_size
            for group, index in self._shared_tail(tables)
        )
        held = Counter(self.held_blocks) if writers else writers
        ref_counts = self.pool.ref_counts
        return sum(count - (ref_counts[block] - held[block] == count) for block, count in writers.items())

    def num_freed_by(self, sequences: Iterable[BlockTables], but: PrefixHit) -> int:
        """Blocks that would come free if all of these sequences gave theirs back, other than those of ``but``."""
        return self._counts.freed_by(sequences, but)

    def cached_token_ids(self, name: bytes) -> list[int]:
        """What the cached block of this name holds, in the first layer group; elsewhere, or if it is not known:
        nothing."""
        return self._children.token_ids(name)

    def block_states(self) -> BlockStates:
        return block_states(self.pool, self.keeping.pins.references, self.held_blocks)

    @property
    def held_blocks(self) -> list[int]:
        """Blocks held for steps in flight, one entry a hold."""
        return [block_id for _, block_ids in self._held for block_id in block_ids]

    # Commits

    def allocate(self, hit: PrefixHit, num_tokens: int, row_id: int, step_id: int) -> Allocation | None:
        """Tables for a new sequence: the hit's blocks, shared, brought in from host or disk or copied, and fresh ones
        up to ``num_tokens``, which is one step further at most. Copied-from blocks are held until ``step_id`` lands."""
        if not self.can_hold(hit, num_tokens):
            return None
        tables, hit = BlockTables(self.config.num_groups, row_id), hit.needed(self.config)
        for block_ids in (*hit.live_ids, hit.tail_ids):
            self.pool.acquire(block_ids)
        for places in hit.host_places:  # before fresh blocks push others out to the host
            self.host.pool.acquire(place.source_id for place in places)
        for places in hit.disk_places:
            self.host.disk.pool.acquire(place.source_id for place in places)
        num_blocks = -(-num_tokens // self._block_size)
        for table, block_ids in zip(tables.groups, hit.block_ids, strict=True):
            table.extend((*block_ids, *self.pool.allocate(num_blocks - len(block_ids))))
        if hit.needs_moves:
            self._bring_in(tables, hit)
        if self.config.has_windows:
            tables.starts = [_num_leading_gaps(table) for table in tables.groups]
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

    def _bring_in(self, tables: BlockTables, hit: PrefixHit) -> None:
        """Blocks for what comes from the host pool or from disk."""
        tiers = ((hit.host_places, self.host.give), (hit.disk_places, self.host.disk.give))
        for places_by_group, give in tiers:
            for table, places in zip(tables.groups, places_by_group, strict=False):
                block_ids = self.pool.allocate(len(places))
                for place, block_id in zip(places, block_ids, strict=True):
                    table[place.logical_block] = block_id
                give([place.source_id for place in places], block_ids)

    def save(self, tables: BlockTables, num_tokens: int) -> SwappedTables | None:
        """Swap the first ``num_tokens`` tokens of a sequence out, those that are in no named block and not behind their
        window: named ones stay in the prefix cache (design, Decided 7). The caller frees the tables. None where the
        host has no room."""
        own = self._counts.own_blocks(tables, num_tokens)
        host_ids = self.host.take([block_id for block_ids in own for block_id in block_ids])
        if host_ids is None:
            return None
        taken = iter(host_ids)
        parts = tuple(list(islice(taken, len(block_ids))) for block_ids in own)
        return SwappedTables(num_tokens, parts)

    def drop_swapped(self, swapped: SwappedTables) -> None:
        """A sequence that was swapped out runs again, or never will."""
        for host_ids in swapped.host_ids:
            self.host.pool.release(reversed(host_ids))

    def extend(self, tables: BlockTables, num_tokens: int, step_id: int, num_landed: int = 0) -> Extension | None:
        """Make positions ``tables.capacity`` .. ``num_tokens - 1`` writable: fresh blocks at the end, and copies of
        blocks in between that others share (copy-on-write). Copied-from blocks are held until ``step_id`` lands. Blocks
        behind the windows of the ``num_landed`` tokens that have landed are given back."""
        have, slides = len(tables.groups[0]), self._slider.due([(tables, num_landed)])
        num_missing = max(0, -(-num_tokens // self._block_size) - have)
        shared = self._shared_tail(tables) if tables.capacity < have * self._block_size else []
        count = len(shared) + num_missing * len(tables.groups)
        if count > self.pool.num_free + self._slider.num_freed(slides):
            return None
        writes = self._slider.take(slides)
        more, copies = self._unshare(tables, shared, step_id) if shared else ([], [])
        writes += more + self._lengthen(tables, num_missing)
        tables.capacity = tables.num_blocks * self._block_size
        return Extension(writes, copies)

    def append_block(self, sequences: list[BlockTables], num_landed: Iterable[int] = ()) -> list[TableWrite] | None:
        """One more block (in each layer group) for each of these sequences, whose blocks are full and their own: what
        many decoding sequences need at once. Those behind the windows of what has landed of each (``num_landed``
        tokens) are given back."""
        count = len(sequences) * self.config.num_groups
        slides = self._slider.due(zip(sequences, num_landed, strict=False))
        if count > self.pool.num_free + self._slider.num_freed(slides):
            return None
        writes = self._slider.take(slides) + self._append(sequences)
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
        for group, (table, start) in enumerate(zip(tables.groups, tables.starts, strict=True)):
            there = filled.without_first(start)
            block_ids = table[there.first : there.first + len(there.hashes)]
            for own, kept in self.pool.publish(block_ids, group_names(group, there.hashes)):
                index = table.index(own)
                table[index] = kept
                writes.append(TableWrite(tables.row_id, group, index, kept))
                self.pool.acquire([kept])
                self._release_after(held_for, [own])
        there = filled.without_first(tables.starts[0])
        self._children.add(there.parents, there.hashes, there.packed)
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
            self.pool.publish_tail(table[index], *group_names(group, [block_hash]))
        if self.pool.lookup(block_hash) is not None:
            self._children.add([chain.parents[index]], [block_hash], [tail])
            self.open_head(chain, index, tail, block_hash)

    def open_head(self, chain: HashChain, index: int, packed: bytes, block_hash: bytes) -> None:
        """Let all find the first tokens of a published block that are open to all, though the block is not."""
        parent = chain.open_parent(index)
        if parent is not None and chain.num_open_in_block and self.pool.lookup(block_hash) is not None:
            self._children.add_head(parent, block_hash, packed[: chain.num_open_in_block * TOKEN_BYTES])

    def prefix_names(self, hashes: Sequence[bytes]) -> list[Sequence[bytes]]:
        """What a prompt that begins with these blocks, or consists of them, takes from the cache: names of neighbours
        in the chain, for each layer group."""
        num_tokens = (len(hashes) - 1) * self._block_size
        return [
            group_names(group, hashes[self.config.first_block(group, num_tokens) :])
            for group in range(self.config.num_groups)
        ]

    def fork(self, tables: BlockTables, num_tokens: int, row_id: int) -> BlockTables:
        """A second sequence that shares every block of this one, which has ``num_tokens`` tokens in the last of them.

        Whichever of the two writes into a shared tail first gets a copy of it (see ``extend``).
        """
        child = BlockTables(self.config.num_groups, row_id)
        child.starts = tables.starts.copy()
        for table, parent in zip(child.groups, tables.groups, strict=True):
            table.extend(parent)
        for live_ids in child.live_groups:
            self.pool.acquire(live_ids)
        child.capacity = num_tokens - num_tokens % self._block_size
        tables.capacity = min(tables.capacity, child.capacity)
        return child

    def free(self, tables: BlockTables) -> None:
        """Give every block of a sequence back, tail first."""
        for live_ids in tables.live_groups:
            self.keeping.retain(live_ids, tables.retention)
            self.pool.release(reversed(live_ids))
        for table in tables.groups:
            table.clear()
        tables.starts = [0] * self.config.num_groups
        tables.capacity = 0

    def store_cached(self) -> None:
        """Give all of the prefix cache up that is in memory and that nobody uses, to the disk tier."""
        host_ids = self.host.pool.allocate(self.host.pool.num_free)  # so that none goes from the device to the host
        self.pool.release(self.pool.allocate(self.pool.num_free))
        self.host.pool.release(host_ids)

    def forget_cached(self) -> None:
        """Empty the prefix cache, the host's part too; what is pinned stays."""
        kept = self.keeping.pins.references
        self._children.clear(name for block_id in kept if (name := self.pool.names[block_id]))
        self.pool.forget_all(kept)
        self.host.forget_cached()

    def land(self, step_id: int) -> None:
        """A step has landed: blocks held for it, or for steps before it, come back."""
        while self._held and self._held[0][0] <= step_id:
            self.pool.release(self._held.popleft()[1])
        self.host.land(step_id)

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

    def _append(self, sequences: list[BlockTables]) -> list[TableWrite]:
        """One more block, in each layer group, for each of these."""
        writes: list[TableWrite] = []
        for group in range(self.config.num_groups):
            for tables, block_id in zip(sequences, self.pool.allocate(len(sequences)), strict=True):
                table = tables.groups[group]
                writes.append(TableWrite(tables.row_id, group, len(table), block_id))
                table.append(block_id)
        return writes

    def _lengthen(self, tables: BlockTables, num_blocks: int) -> list[TableWrite]:
        """So many more blocks, in each layer group, for one sequence."""
        writes: list[TableWrite] = []
        for group, table in enumerate(tables.groups):
            block_ids = self.pool.allocate(num_blocks)
            indices = range(len(table), len(table) + num_blocks)
            writes += map(TableWrite, repeat(tables.row_id), repeat(group), indices, block_ids)
            table.extend(block_ids)
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


def _num_leading_gaps(table: list[int]) -> int:
    return next((index for index, block_id in enumerate(table) if block_id != NO_BLOCK), len(table))
