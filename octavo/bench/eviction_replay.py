"""A prefix cache driven by a trace, without scheduler and model: what an order of eviction is worth."""

from collections.abc import Sequence

from octavo.bench.eviction_traces import CachedRequest, Trace
from octavo.core.evictor import MakeEvictor


class PrefixCache:
    """Serves one request at a time from ``num_blocks`` blocks, as BlockPool and KVCacheManager do: the request holds
    the blocks it hits and those it computes until its end, then gives them back tail first.

    A request larger than the cache keeps as much of its head as there is room for, but for one block: the rest of its
    blocks must be somewhere while they are computed. (So counts the simulator that the published figures come from.)
    """

    def __init__(self, num_blocks: int, make_evictor: MakeEvictor) -> None:
        self._names: list[bytes | None] = [None] * num_blocks
        self._evictor = make_evictor(self._names)
        self._index: dict[bytes, int] = {}
        self._free = list(range(num_blocks))

    def serve(self, request: CachedRequest) -> int:
        """Blocks of the request that were there."""
        table = self._lookup(request.names)
        num_hits = len(table)
        self._evictor.remove(table)
        missing = request.names[num_hits:]
        self._make_room(len(missing))
        for name in missing[: len(self._free)]:
            block_id = self._free.pop()
            self._names[block_id] = name
            self._index[name] = block_id
            table.append(block_id)
        if num_hits < len(table) < len(request.names):
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

    def _make_room(self, num_blocks: int) -> None:
        """Evict until this many blocks are free, or all that are not held."""
        count = min(num_blocks - len(self._free), len(self._evictor))
        if count > 0:
            for block_id in self._evictor.evict(count):
                self._drop(block_id)

    def _drop(self, block_id: int) -> None:
        name = self._names[block_id]
        assert name is not None, "only blocks with contents are dropped"
        del self._index[name]
        self._names[block_id] = None
        self._free.append(block_id)


def replay(trace: Trace, num_blocks: int, make_evictor: MakeEvictor) -> int:
    """Hit tokens of the second half of the requests; the first half warms the cache and what the policy learns."""
    cache = PrefixCache(num_blocks, make_evictor)
    half = len(trace.requests) // 2
    for request in trace.requests[:half]:
        cache.serve(request)
    return sum(min(cache.serve(request) * trace.block_size, request.num_tokens) for request in trace.requests[half:])
