"""The pool: every block of one device's KV memory, free ones in O(1), cached ones by hash."""

from collections.abc import Iterable

from octavo.core.block import Block
from octavo.core.evictor import Evictor, LRUEvictor


class BlockPool:
    """Owns all blocks and knows which are free, cached and shared; knows nothing of requests or budgets.

    A block with no references is either on the free stack (contents worthless) or in the evictor (contents cached).
    Both count as free: an allocation takes worthless blocks first and then evicts.
    """

    def __init__(self, num_blocks: int, num_groups: int = 1, evictor: Evictor | None = None) -> None:
        self.num_blocks = num_blocks
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self.evictor: Evictor = LRUEvictor() if evictor is None else evictor
        self.num_shared = 0
        self._free = list(range(num_blocks - 1, -1, -1))
        self._index: tuple[dict[bytes, int], ...] = tuple({} for _ in range(num_groups))

    @property
    def num_free(self) -> int:
        """Blocks that an allocation could get now, cached ones included (spec D23)."""
        return len(self._free) + len(self.evictor)

    @property
    def num_cached(self) -> int:
        """Blocks without references whose contents can still be hit."""
        return len(self.evictor)

    @property
    def num_hashed(self) -> int:
        """Blocks in the prefix cache, referenced or not."""
        return sum(len(index) for index in self._index)

    @property
    def free_block_ids(self) -> list[int]:
        """Ids of all blocks without references, in no order; O(n), for checks."""
        return [*self._free, *(block.block_id for block in self.blocks if block.block_id in self.evictor)]

    def lookup(self, group: int, block_hash: bytes) -> int | None:
        """Id of the block that holds these contents for this layer group. Changes nothing."""
        return self._index[group].get(block_hash)

    def num_unreferenced(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks count as free now. Changes nothing."""
        return sum(self.blocks[block_id].ref_count == 0 for block_id in block_ids)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks, each with one reference. The caller has made sure that ``num_free`` suffices."""
        if len(self._free) < count:
            self._free += self._evict(count - len(self._free))
        kept = len(self._free) - count
        taken = self._free[kept:][::-1]
        del self._free[kept:]
        for block_id in taken:
            self.blocks[block_id].ref_count = 1
        return taken

    def acquire(self, block_id: int) -> None:
        """One more reference to a block that is in use or cached."""
        block = self.blocks[block_id]
        if block.ref_count == 0:
            self.evictor.remove(block_id)
        elif block.ref_count == 1:
            self.num_shared += 1
        block.ref_count += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """Drop one reference to each, in this order (pass a table tail first, so that leaves are evicted first).

        Raises:
            ValueError: a block has no reference left to drop (a double free).
        """
        blocks, evictor = self.blocks, self.evictor
        for block_id in block_ids:
            block = blocks[block_id]
            if block.ref_count == 1:
                block.ref_count = 0
                if block.hash is None:
                    self._free.append(block_id)
                else:
                    evictor.add(block_id)
            elif block.ref_count == 0:
                raise ValueError(f"block {block_id} was freed twice")
            else:
                block.ref_count -= 1
                self.num_shared -= block.ref_count == 1

    def publish(self, block_id: int, group: int, block_hash: bytes) -> int:
        """Enter a filled block in the prefix cache; returns the block that the cache keeps for these contents,
        which is another one if they were computed twice."""
        index = self._index[group]
        if block_hash in index:
            return index[block_hash]
        index[block_hash] = block_id
        block = self.blocks[block_id]
        block.hash, block.group = block_hash, group
        return block_id

    def forget_all(self) -> None:
        """Empty the prefix cache. Blocks in use stay in use, without a hash."""
        self._free += self._evict(len(self.evictor))
        for index in self._index:
            for block_id in index.values():
                self.blocks[block_id].hash = None
            index.clear()

    def _evict(self, count: int) -> list[int]:
        """Drop the contents of the ``count`` cached blocks that are worth least."""
        evicted = self.evictor.evict(count)
        for block_id in evicted:
            block = self.blocks[block_id]
            assert block.hash is not None, "only cached blocks are in the evictor"
            del self._index[block.group][block.hash]
            block.hash = None
        return evicted
