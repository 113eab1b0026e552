"""A prefix cache driven by a trace, without scheduler and model: what an order of eviction is worth."""

from octavo.bench.eviction_traces import Trace
from octavo.core.evictor import MakeEvictor
from octavo.core.name_cache import NameCache


def replay(trace: Trace, num_blocks: int, make_evictor: MakeEvictor) -> int:
    """Hit tokens of the second half of the requests; the first half warms the cache and what the policy learns.

    A request that is larger than the cache counts as in the simulator that the published figures come from (see
    ``NameCache.serve``).
    """
    cache = NameCache(num_blocks, make_evictor)
    half = len(trace.requests) // 2
    for request in trace.requests[:half]:
        cache.serve(request.names, num_blocks)
    return sum(
        min(cache.serve(request.names, num_blocks) * trace.block_size, request.num_tokens)
        for request in trace.requests[half:]
    )
