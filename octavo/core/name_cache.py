"""A prefix cache that holds names only: what an order of eviction hits, with no blocks behind it."""

from collections.abc import Sequence

from octavo.core.evictor import MakeEvictor


class NameCache:
    """Serves one request at a time, as BlockPool and KVCacheManager do: the request holds the blocks it hits and those
    it computes until its end, then gives them back tail first. Never holds more than ``max_blocks``."""

    def __init__(self, max_blocks: int, make_evictor: MakeEvictor) -> None:
        self._names: list[bytes | None] = [None] * max_blocks
        self._evictor = make_evictor(self._names)
        self._index: dict[bytes, int] = {}
        self._free = list(range(max_blocks))

    def serve(self, names: Sequence[bytes], num_blocks: int) -> int:
        """How many of these blocks, root first, were there, in a cache that may hold ``num_blocks`` now.

        A request larger than the cache keeps as much of its head as there is room for, but for one block: the rest of
        its blocks must be somewhere while they are computed.
        """
        table = self._lookup(names)
        num_hits, missing = len(table), names[len(table) :]
        self._evictor.remove(table)
        self._forget(missing)
        self._evict(len(table) + len(missing) + len(self._evictor) - num_blocks)
        for name in missing[: max(0, num_blocks - len(self._evictor) - len(table))]:
            block_id = self._free.pop()
            self._names[block_id] = name
            self._index[name] = block_id
            table.append(block_id)
        if num_hits < len(table) < len(names):
            self._drop(table.pop())
        self._evictor.add(reversed(table))
        return num_hits

    def _lookup(self, names: Sequence[bytes]) -> list[int]:
        table = []
        for name in names:
            block_id = self._index.get(name)
            if block_id is None:
                break
            table.append(block_id)
        return table

    def _forget(self, names: Sequence[bytes]) -> None:
        """Drop these where they are here: they cannot be hit, since what they follow is missing."""
        found = [self._index[name] for name in names if name in self._index]
        self._evictor.remove(found)
        for block_id in found:
            self._drop(block_id)

    def _evict(self, count: int) -> None:
        """Evict so many, or all that are not held."""
        for block_id in self._evictor.evict(max(0, min(count, len(self._evictor)))):
            self._drop(block_id)

    def _drop(self, block_id: int) -> None:
        name = self._names[block_id]
        assert name is not None, "only blocks with contents are dropped"
        del self._index[name]
        self._names[block_id] = None
        self._free.append(block_id)
