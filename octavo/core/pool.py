"""The pool: every block of one device's KV memory, free ones in O(1), cached ones by hash."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from octavo.core.evictor import Evictor, LRUEvictor, MakeEvictor
from octavo.core.kv_fault import KVFault, KVFaultError

OnEvict = Callable[[list[int], list[bytes]], None]
"""Told of blocks whose contents are about to be dropped, and the names of these."""


OnUnname = Callable[[list[bytes]], None]
"""Told of contents that can be found no more."""


class Duplicate(NamedTuple):
    """Contents that were computed twice: block ``own`` holds what the prefix cache keeps in block ``kept``."""

    own: int
    kept: int


class BlockPool:
    """Owns all blocks and knows which are free, cached and shared; knows nothing of requests or budgets.

    A block is an id; what is known of it stands in parallel lists. ``ref_counts`` counts its occurrences in block
    tables, pins and holds. Contents that others may find have a name in ``names`` (the chained hash of their tokens,
    see BlockHasher, and the layer group whose keys and values they are); contents without a name are known to their own
    table alone. A block that is not full can have a name too (``_tails``); its owner may go on writing after what the
    name stands for, and takes the name away when it is full.

    A block with no references is either on the free stack (contents worthless) or in the evictor (contents cached).
    Both count as free: an allocation takes worthless blocks first and then evicts; ``num_evicted``
    counts blocks that were.
    """

    def __init__(
        self,
        num_blocks: int,
        make_evictor: MakeEvictor = LRUEvictor,
        on_evict: OnEvict | None = None,
        on_unname: OnUnname = lambda _names: None,
    ) -> None:
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._on_unname = on_unname
        self.ref_counts = [0] * num_blocks
        self.names: list[bytes | None] = [None] * num_blocks
        self.evictor: Evictor = make_evictor(self.names)
        self.num_shared = 0
        self.num_evicted = 0
        self._free = list(range(num_blocks - 1, -1, -1))
        self._index: dict[bytes, int] = {}
        self._tails: set[int] = set()
        self._dropped: list[int] | None = None

    @property
    def num_free(self) -> int:
        """Blocks that an allocation could get now, cached ones included (spec D23)."""
        return len(self._free) + len(self.evictor)

    @property
    def num_cached(self) -> int:
        """Blocks without references whose contents can still be hit."""
        return len(self.evictor)

    @property
    def num_named(self) -> int:
        """Blocks in the prefix cache, referenced or not."""
        return len(self._index)

    @property
    def free_block_ids(self) -> list[int]:
        """Ids of all blocks without references, in no order; O(n), for checks."""
        return [*self._free, *(block_id for block_id in range(self.num_blocks) if block_id in self.evictor)]

    def lookup(self, name: bytes) -> int | None:
        """Id of the block that holds these contents. Changes nothing."""
        return self._index.get(name)

    def lookup_chain(self, names: Iterable[bytes]) -> list[int]:
        """Ids of the blocks that hold the longest cached head of this chain. Changes nothing."""
        found = []
        for block_id in map(self._index.get, names):
            if block_id is None:
                break
            found.append(block_id)
        return found

    def num_unreferenced(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks count as free now. Changes nothing."""
        return sum(not self.ref_counts[block_id] for block_id in block_ids)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks, each with one reference. The caller has made sure that ``num_free`` suffices."""
        assert count >= 0, "more blocks were there than are needed"
        if len(self._free) < count:
            self._free += self._evict(count - len(self._free))
        kept = len(self._free) - count
        taken = self._free[kept:]
        taken.reverse()
        del self._free[kept:]
        ref_counts = self.ref_counts
        for block_id in taken:
            ref_counts[block_id] = 1
        return taken

    def acquire(self, block_ids: Iterable[int]) -> None:
        """One more reference to each of these blocks, which are in use or cached."""
        ref_counts = self.ref_counts
        woken = []
        for block_id in block_ids:
            ref_count = ref_counts[block_id]
            if ref_count == 0:
                woken.append(block_id)
            elif ref_count == 1:
                self.num_shared += 1
            ref_counts[block_id] = ref_count + 1
        self.evictor.remove(woken)

    def release(self, block_ids: Iterable[int]) -> None:
        """Drop one reference to each, in this order (pass a table tail first, so that leaves are evicted first).

        Raises:
            KVFaultError: a block has no reference left to drop (a double free).
        """
        block_ids = list(block_ids)
        num_free = len(self._free)
        num_own = self._num_own_and_named(block_ids)
        own, others = block_ids[:num_own], block_ids[num_own:]
        for block_id in own:
            self.ref_counts[block_id] = 0
        cached, above = self._release_each(others)
        self.evictor.add(own + cached, above)
        if self._dropped is not None:
            self._dropped += self._free[num_free:]

    def _num_own_and_named(self, block_ids: list[int]) -> int:
        """How many of these, from the first on, have one reference and a name: nearly all, mostly, when a sequence
        ends. (0 where it is not that simple.)"""
        if len(block_ids) < 2:
            return 0
        take = itemgetter(*block_ids)
        ref_counts = take(self.ref_counts)
        num_own = ref_counts.count(1)
        is_simple = ref_counts[:num_own].count(1) == num_own and None not in take(self.names)[:num_own]
        return num_own if is_simple else 0

    def _release_each(self, block_ids: list[int]) -> tuple[list[int], list[int]]:
        """Returns those that are cached and unreferenced now, and those that are still referenced."""
        ref_counts, names, free = self.ref_counts, self.names, self._free
        cached, above = [], []
        for block_id in block_ids:
            ref_count = ref_counts[block_id]
            if ref_count == 1:
                if names[block_id] is None:
                    free.append(block_id)
                else:
                    cached.append(block_id)
            elif ref_count == 0:
                raise KVFaultError(KVFault.DOUBLE_FREE, f"block {block_id} was freed twice")
            else:
                self.num_shared -= ref_count == 2
                above.append(block_id)
            ref_counts[block_id] = ref_count - 1
        return cached, above

    def publish(self, block_ids: list[int], names: Sequence[bytes]) -> list[Duplicate]:
        """Enter filled blocks in the prefix cache, each under its name; returns those whose contents another block
        holds already: the cache keeps that one."""
        if not self._tails.isdisjoint(block_ids):
            self._unname_tails(block_ids)
        kept_ids = list(map(self._index.setdefault, names, block_ids))
        duplicates = []
        if kept_ids != block_ids:
            duplicates = [Duplicate(own, kept) for own, kept in zip(block_ids, kept_ids, strict=True) if own != kept]
        deque(map(self.names.__setitem__, kept_ids, names), maxlen=0)  # the quickest loop there is
        return duplicates

    def publish_tail(self, block_id: int, name: bytes) -> None:
        """Enter a block that is not full in the prefix cache, unless its contents are there already."""
        self._unname_tails([block_id])
        if name not in self._index and self.names[block_id] is None:
            self._index[name] = block_id
            self.names[block_id] = name
            self._tails.add(block_id)

    def _unname_tails(self, block_ids: Iterable[int]) -> None:
        self.forget(self._tails.intersection(block_ids))

    def forget_all(self, kept: Iterable[int] = ()) -> None:
        """Empty the prefix cache, but for blocks ``kept``, which are in use. Others in use stay so, without a name."""
        remaining = {name: block_id for block_id in kept if (name := self.names[block_id]) is not None}
        forgotten = self.evictor.evict(len(self.evictor))
        self._free += forgotten
        if self._dropped is not None:
            self._dropped += forgotten
        for block_id in self._index.values():
            self.names[block_id] = None
        self._index.clear()
        self._tails.clear()
        self._index.update(remaining)
        for name, block_id in remaining.items():
            self.names[block_id] = name

    def forget(self, block_ids: Iterable[int]) -> None:
        """Take these blocks, which are in use, out of the prefix cache."""
        for block_id in block_ids:
            if name := self.names[block_id]:
                del self._index[name]
                self.names[block_id] = None
                self._tails.discard(block_id)
                self._on_unname([name])

    def note_dropped(self) -> None:
        """From now on, note blocks whose contents are dropped: evicted, forgotten, or freed without a name."""
        self._dropped = []

    def take_dropped(self) -> tuple[int, ...]:
        """Those noted since the last call; none where nobody has asked for it."""
        if not self._dropped:
            return ()
        taken, self._dropped = tuple(self._dropped), []
        return taken

    def _evict(self, count: int) -> list[int]:
        """Drop the contents of the ``count`` cached blocks that are worth least."""
        evicted = self.evictor.evict(count)
        self.num_evicted += len(evicted)
        names, index = self.names, self._index
        dropped = [name for block_id in evicted if (name := names[block_id])]
        assert len(dropped) == len(evicted), "only cached blocks are in the evictor"
        for block_id, name in zip(evicted, dropped, strict=True):
            names[block_id] = None
            del index[name]
        self._on_unname(dropped)
        if self._on_evict is not None:
            full = [pair for pair in zip(evicted, dropped, strict=True) if pair[0] not in self._tails]
            self._on_evict([block_id for block_id, _ in full], [name for _, name in full])
        self._tails.difference_update(evicted)
        if self._dropped is not None:
            self._dropped += evicted
        return evicted
