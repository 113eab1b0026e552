"""What prompts share, by the names of their blocks, and what of it a cache of a given size would have."""

from collections import Counter
from itertools import accumulate

from octavo.doctor.finding import Finding, Severity, graded
from octavo.doctor.reuse import MAX_KEYS, ReuseDistances
from octavo.doctor.words import number, share
from octavo.sim.traces.request import TracedRequest

LOST_WARNING, LOST_SEVERE = 0.05, 0.2
"""Shares of all prompt tokens."""

MOST = 0.9
"""Of what an unlimited cache would have: what a cache should have to be large enough."""

LITTLE, LONG_PROMPT, MIN_REQUESTS = 0.05, 64, 100


class Sharing:
    """Counts as requests come. ``num_requests``, ``prompt_tokens``: of those whose blocks have names."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self.reuse = ReuseDistances(max_keys)
        self.num_requests = 0
        self.prompt_tokens = 0
        self.block_size = 0
        self._max_roots = max_keys
        self._root_shift = 0
        self._roots: Counter[int] = Counter()

    def add(self, request: TracedRequest) -> None:
        """One that has names."""
        size = self.block_size = request.block_size
        self.num_requests += 1
        self.prompt_tokens += request.prompt
        keys = [*accumulate(request.blocks, lambda above, name: hash((above, name)), initial=0)][1:]
        num_wanted = min(len(keys), -(-request.prompt // size))
        weights = [size] * num_wanted
        weights[-1] = request.prompt - size * (num_wanted - 1) if num_wanted * size >= request.prompt else size
        self.reuse.use(keys, weights, num_wanted)
        self._note_root(keys[0])

    def _note_root(self, key: int) -> None:
        if key & ((1 << self._root_shift) - 1):
            return
        self._roots[key] += 1
        while len(self._roots) > self._max_roots:
            self._root_shift += 1
            mask = (1 << self._root_shift) - 1
            self._roots = Counter({key: count for key, count in self._roots.items() if not key & mask})

    @property
    def lonely_share(self) -> float:
        """Of the requests, those whose first block nobody else has."""
        return sum(count == 1 for count in self._roots.values()) / max(1, self._roots.total())

    @property
    def reusable_share(self) -> float:
        """Of the prompt tokens, those that an unlimited cache would have."""
        return self.reuse.reuses / max(1, self.reuse.uses)

    def hit_share(self, num_blocks: int) -> float:
        """The same of a cache of so many blocks of the trace's size."""
        return self.reuse.hits(num_blocks) / max(1, self.reuse.uses)


def thrashing(sharing: Sharing, capacity: int | None, block_size: int) -> Finding | None:
    """The cache gives up what is wanted again. ``capacity``: tokens that it holds, None where nobody says it;
    ``block_size``: of the server."""
    if capacity is None:
        return None
    held, most = sharing.hit_share(capacity // sharing.block_size), sharing.reusable_share
    severity = graded(most - held, LOST_WARNING, LOST_SEVERE)
    if severity is None:
        return None
    enough = sharing.reuse.blocks_for(MOST) * sharing.block_size
    lost = (most - held) * sharing.prompt_tokens
    return Finding(
        "cache-thrashing",
        severity,
        f"A cache of {number(capacity)} tokens has {share(held)} of the prompt tokens when they are asked for again, "
        f"an unlimited one {share(most)}: {number(lost)} tokens, {number(lost / sharing.num_requests)} a request, are "
        "evicted before they are wanted.",
        f"Serve with --num-blocks {-(-enough // block_size)}, or with --prefix-cache-on-host and a --swap-space for "
        f"{number(max(0, enough - capacity))} tokens more (octavo inspect MODEL says what a token takes); "
        "--eviction-policy reuse gets more out of the same memory.",
        f"{number(enough)} tokens have {share(MOST * most)} of the prompt tokens: "
        f"{share(max(0.0, MOST * most - held))} of them less to compute.",
        {"hit_share": held, "reusable_share": most, "lost_tokens": lost, "enough_tokens": enough},
    )


def nothing_shared(sharing: Sharing) -> Finding | None:
    """Long prompts have no beginning in common."""
    is_long = sharing.prompt_tokens >= LONG_PROMPT * sharing.num_requests
    if not is_long or sharing.num_requests < MIN_REQUESTS or sharing.reusable_share >= LITTLE:
        return None
    return Finding(
        "nothing-shared",
        Severity.WARNING if sharing.lonely_share >= 0.5 else Severity.NOTE,
        f"{share(sharing.reusable_share)} of the prompt tokens were in an earlier request, however large the cache; "
        f"{share(sharing.lonely_share)} of the requests begin with a block of {sharing.block_size} tokens that no "
        "other has.",
        "If they have instructions in common, something before them differs: a time, an id, a name. Give the doctor "
        "the prompts (docs/doctor.md, text); it names the place.",
        "What they have in common is computed once.",
        {"reusable_share": sharing.reusable_share, "lonely_share": sharing.lonely_share},
    )
