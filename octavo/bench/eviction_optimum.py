"""What a prefix cache could hit if it knew the future: Belady's rule with bypass, leaf first."""

import math
from heapq import heappop, heappush

from octavo.bench.eviction_traces import Trace


def _next_uses(trace: Trace) -> list[list[float]]:
    """For each block of each request, the number of the next request that has it; infinite if there is none."""
    next_uses: list[list[float]] = []
    next_use: dict[bytes, float] = {}
    for number in range(len(trace.requests) - 1, -1, -1):
        names = trace.requests[number].names
        next_uses.append([next_use.get(name, math.inf) for name in names])
        next_use.update(dict.fromkeys(names, number))
    return next_uses[::-1]


class ClairvoyantCache:
    """Keeps the blocks wanted soonest ("A Study of Replacement Algorithms for a Virtual-Storage Computer", Belady, IBM
    Systems Journal 1966), and does not take in a block wanted later than all it would have to push out."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._next_use: dict[bytes, float] = {}
        self._parents: dict[bytes, bytes | None] = {}
        self._num_children: dict[bytes | None, int] = {}
        self._leaves: list[tuple[float, bytes]] = []  # minus next use; entries may be out of date

    def serve(self, names: list[bytes], next_uses: list[float]) -> int:
        """Blocks of the request that were there."""
        num_hits = next((index for index, name in enumerate(names) if name not in self._next_use), len(names))
        for name, next_use in zip(names[:num_hits], next_uses, strict=False):
            self._next_use[name] = next_use
            self._offer(name)
        held = set(names[:num_hits])
        for index in range(num_hits, len(names)):
            if len(self._next_use) >= self._num_blocks and not self._evict_later_than(next_uses[index], held):
                break
            parent = names[index - 1] if index else None
            if parent is not None and parent not in self._next_use:
                break
            self._insert(names[index], parent, next_uses[index])
        return num_hits

    def _insert(self, name: bytes, parent: bytes | None, next_use: float) -> None:
        self._next_use[name] = next_use
        self._parents[name] = parent
        self._num_children[parent] = self._num_children.get(parent, 0) + 1
        self._offer(name)

    def _offer(self, name: bytes) -> None:
        if not self._num_children.get(name):
            heappush(self._leaves, (-self._next_use[name], name))

    def _evict_later_than(self, next_use: float, held: set[bytes]) -> bool:
        """Evict the leaf wanted last, if that is later than ``next_use``; blocks that are held stay."""
        passed = []
        victim = None
        while self._leaves and victim is None:
            minus_next_use, name = entry = heappop(self._leaves)
            if self._next_use.get(name) != -minus_next_use or self._num_children.get(name):
                continue
            if name in held:
                passed.append(entry)
            elif -minus_next_use <= next_use:
                passed.append(entry)
                break
            else:
                victim = name
        for entry in passed:
            heappush(self._leaves, entry)
        if victim is None:
            return False
        del self._next_use[victim]
        parent = self._parents.pop(victim)
        self._num_children[parent] -= 1
        if parent is not None and not self._num_children[parent]:
            self._offer(parent)
        return True


def optimum(trace: Trace, num_blocks: int) -> int:
    """Hit tokens of the second half of the requests, as ``replay`` counts them."""
    cache = ClairvoyantCache(num_blocks)
    half = len(trace.requests) // 2
    hit_tokens = 0
    for number, (request, next_uses) in enumerate(zip(trace.requests, _next_uses(trace), strict=True)):
        num_hits = cache.serve(list(request.names), next_uses)
        if number >= half:
            hit_tokens += min(num_hits * trace.block_size, request.num_tokens)
    return hit_tokens
