"""Orders of eviction, driven as the pool drives them: by traces of chains of blocks."""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from octavo.bench.eviction_optimum import optimum
from octavo.bench.eviction_replay import replay
from octavo.bench.eviction_traces import (
    CachedRequest,
    ConversationSettings,
    Trace,
    generate_conversations,
    read_mooncake,
)
from octavo.core.eviction_policies import EVICTION_POLICIES
from octavo.core.eviction_reuse import GHOSTS_PER_BLOCK, ReuseEvictor
from octavo.core.eviction_trial import TrialEvictor
from octavo.core.evictor import LRUEvictor
from octavo.core.name_cache import NameCache

MOONCAKE = Path(__file__).parent / "data" / "mooncake_conversation.jsonl.gz"
"""conversation_trace.jsonl of the traces published with Mooncake (FAST 2025), Apache-2.0 (LICENSE.mooncake)."""

PUBLISHED_LRU = {
    20: 3080192,
    195: 3082824,
    1953: 3760881,
    3906: 5749918,
    7812: 12268741,
    9765: 14613189,
    15625: 18657905,
    19531: 20351052,
    40000: 25293816,
    97656: 26607988,
}
"""Hit tokens by capacity in blocks: kvcache-simulator 0.1.3 (leaf-first LRU on a prefix tree) on that trace."""
PUBLISHED_OPTIMUM = {1953: 17885809, 3906: 23153212, 7812: 26871156}

ALWAYS = (3906, 15625)
"""Capacities at which every test run replays the trace; ``make soak`` does so at all of them."""


def _capacities(capacities: Iterable[int]) -> list[object]:
    return [
        pytest.param(num_blocks, marks=pytest.mark.slow if num_blocks in ALWAYS else pytest.mark.soak)
        for num_blocks in sorted(capacities)
    ]


@pytest.fixture(scope="module")
def mooncake() -> Trace:
    return read_mooncake(MOONCAKE)


def random_trace(seed: int, num_requests: int = 300) -> Trace:
    """Requests that continue, repeat, cut short or branch off earlier ones, some of them only a little."""
    source = random.Random(seed)
    chains: list[list[bytes]] = [[]]
    fresh = iter(range(1_000_000))
    for _ in range(num_requests):
        head = source.choice(chains[-30:])
        kept = head[: source.randint(0, len(head))] if source.random() < 0.5 else head
        more = [next(fresh).to_bytes(8, "little") for _ in range(source.randint(0 if kept else 1, 6))]
        chains.append(kept + more)
    return Trace([CachedRequest(chain, 4 * len(chain)) for chain in chains[1:]], block_size=4)


class NaiveLRU:
    """Leaf-first LRU as a tree: a set of chains, the last use of each, every eviction a search through all of it."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.last_use: dict[tuple[bytes, ...], int] = {}
        self.now = 0

    def serve(self, names: Sequence[bytes]) -> int:
        chains = [tuple(names[: end + 1]) for end in range(len(names))]
        num_hits = next((index for index, chain in enumerate(chains) if chain not in self.last_use), len(chains))
        held = set(chains[:num_hits])
        for chain in chains[:num_hits]:
            self.touch(chain)
        for chain in chains[num_hits:]:
            if len(self.last_use) == self.num_blocks:
                leaves = self.last_use.keys() - {other[:-1] for other in self.last_use} - held
                if not leaves:
                    break
                del self.last_use[min(leaves, key=self.last_use.__getitem__)]
            if len(chain) > 1 and chain[:-1] not in self.last_use:
                break
            self.touch(chain)
        return num_hits

    def touch(self, chain: tuple[bytes, ...]) -> None:
        self.now += 1
        self.last_use[chain] = self.now


@pytest.mark.parametrize("num_blocks", [1, 3, 10, 40])
@pytest.mark.parametrize("seed", range(5))
def test_lru_is_that_of_a_prefix_tree(num_blocks: int, seed: int) -> None:
    cache, naive = NameCache(num_blocks, EVICTION_POLICIES["lru"]), NaiveLRU(num_blocks)
    for request in random_trace(seed).requests:
        assert cache.serve(request.names, num_blocks) == naive.serve(request.names)


@pytest.mark.parametrize("num_blocks", [20, 195, 600])
def test_lru_on_the_head_of_the_recorded_load_is_that_of_a_prefix_tree(mooncake: Trace, num_blocks: int) -> None:
    """To the token, as ``replay`` counts them: those of the second half."""
    requests, naive = mooncake.requests[:200], NaiveLRU(num_blocks)
    hits = [min(512 * naive.serve(request.names), request.num_tokens) for request in requests]
    head = Trace(requests, mooncake.block_size)
    assert replay(head, num_blocks, EVICTION_POLICIES["lru"]) == sum(hits[100:])


@pytest.mark.slow
@pytest.mark.parametrize("num_blocks", PUBLISHED_LRU)
def test_lru_hits_what_was_published_to_the_token(mooncake: Trace, num_blocks: int) -> None:
    assert replay(mooncake, num_blocks, EVICTION_POLICIES["lru"]) == PUBLISHED_LRU[num_blocks]


@pytest.mark.parametrize("num_blocks", _capacities(PUBLISHED_OPTIMUM))
def test_reuse_closes_a_quarter_of_the_gap(mooncake: Trace, num_blocks: int) -> None:
    hit_tokens, lru = replay(mooncake, num_blocks, EVICTION_POLICIES["reuse"]), PUBLISHED_LRU[num_blocks]
    assert hit_tokens - lru >= 0.25 * (PUBLISHED_OPTIMUM[num_blocks] - lru)


@pytest.mark.parametrize("num_blocks", _capacities(PUBLISHED_LRU.keys() - PUBLISHED_OPTIMUM.keys()))
def test_reuse_never_loses_to_lru_on_the_recorded_load(mooncake: Trace, num_blocks: int) -> None:
    assert replay(mooncake, num_blocks, EVICTION_POLICIES["reuse"]) >= 0.99 * PUBLISHED_LRU[num_blocks]


@pytest.mark.slow
def test_the_optimum_is_the_published_one(mooncake: Trace) -> None:
    assert optimum(mooncake, 1953) == PUBLISHED_OPTIMUM[1953]


@pytest.mark.parametrize("policy", EVICTION_POLICIES)
@pytest.mark.parametrize("num_blocks", [1, 3, 10, 40])
def test_no_policy_beats_the_optimum(policy: str, num_blocks: int) -> None:
    for seed in range(5):
        trace = random_trace(seed)
        assert replay(trace, num_blocks, EVICTION_POLICIES[policy]) <= optimum(trace, num_blocks)


@pytest.mark.parametrize("num_blocks", [1, 2, 7, 20, 60])
@pytest.mark.parametrize("seed", range(5))
def test_a_parent_never_leaves_before_its_children(num_blocks: int, seed: int) -> None:
    names: list[Sequence[bytes | None]] = []

    def make(of_pool: Sequence[bytes | None]) -> ReuseEvictor:
        names.append(of_pool)
        return ReuseEvictor(of_pool)

    cache, parents = NameCache(num_blocks, make), {}
    for request in random_trace(seed).requests:
        cache.serve(request.names, num_blocks)
        parents.update(zip(request.names[1:], request.names, strict=False))
        cached = {name for name in names[0] if name is not None}
        assert {parents[name] for name in cached if name in parents} <= cached


def test_reuse_is_the_same_every_time() -> None:
    trace = random_trace(seed=7, num_requests=600)
    assert replay(trace, 25, EVICTION_POLICIES["reuse"]) == replay(trace, 25, EVICTION_POLICIES["reuse"])


def test_reuse_keeps_what_comes_back_from_what_never_does() -> None:
    """Ten prompts return in turn, each after more one-off prompts than the cache holds: recency hits nothing."""
    fresh = iter(range(1_000_000))

    def prompt(first: int) -> CachedRequest:
        return CachedRequest([(first << 8 | block).to_bytes(8, "little") for block in range(8)], 8 * 16)

    regulars = [prompt(1_000_000 + number) for number in range(10)]
    requests = [
        request for turn in range(100) for request in (regulars[turn % 10], *(prompt(next(fresh)) for _ in range(4)))
    ]
    trace = Trace(requests, block_size=16)
    total = len(requests) // 5 // 2 * 8 * 16
    assert replay(trace, 200, EVICTION_POLICIES["lru"]) == 0
    assert replay(trace, 200, EVICTION_POLICIES["reuse"]) >= 0.9 * total


@pytest.mark.parametrize(
    "settings",
    [
        ConversationSettings(400),
        ConversationSettings(400, system_prompt=341, mean_pause_s=20.0),
        ConversationSettings(800, mean_turns=1.5),
        ConversationSettings(200, mean_turns=6.0, mean_pause_s=300.0, pause_sigma=0.5),
    ],
    ids=["usual", "system prompt", "few turns", "long pauses"],
)
@pytest.mark.parametrize(
    ("seed", "share"),
    [pytest.param(0, 0.05, marks=pytest.mark.slow)]
    + [
        pytest.param(seed, share, marks=pytest.mark.soak)
        for seed in range(4)
        for share in (0.01, 0.05, 0.2)
        if (seed, share) != (0, 0.05)
    ],
)
def test_reuse_never_loses_to_lru_on_conversations(settings: ConversationSettings, seed: int, share: float) -> None:
    trace = generate_conversations(settings, seed)
    num_contents = len({name for request in trace.requests for name in request.names})
    num_blocks = int(num_contents * share)
    hit_tokens, lru = (replay(trace, num_blocks, EVICTION_POLICIES[policy]) for policy in ("reuse", "lru"))
    assert hit_tokens >= 0.99 * lru


def test_ghosts_are_bounded_and_every_block_is_given_up_once() -> None:
    num_blocks = 8
    names: list[bytes | None] = [None] * num_blocks
    evictor = ReuseEvictor(names)
    for turn in range(100):
        for block_id in range(num_blocks):
            names[block_id] = (turn * num_blocks + block_id).to_bytes(8, "little")
        evictor.add(range(num_blocks))
        assert len(evictor) == num_blocks
        assert sorted(evictor.evict(num_blocks)) == list(range(num_blocks))
        assert len(evictor) == 0
        assert 0 not in evictor
        assert evictor.num_ghosts <= GHOSTS_PER_BLOCK * num_blocks
    assert evictor.num_ghosts == GHOSTS_PER_BLOCK * num_blocks


def test_a_block_waits_for_its_children_in_another_chain() -> None:
    """Block 0 was released with 1; 2 and 3 hang on it too, released while 0 was still in use."""
    evictor = ReuseEvictor([bytes([block_id]) for block_id in range(4)])
    evictor.add([1])
    evictor.add([3, 2], above=[0])
    evictor.add([0])
    order = evictor.evict(4)
    assert sorted(order) == [0, 1, 2, 3]
    assert order.index(3) < order.index(2) < order.index(0)


def test_a_hit_takes_a_block_out_of_the_order() -> None:
    names = [bytes([block_id]) for block_id in range(3)]
    for evictor in (LRUEvictor(), ReuseEvictor(names), TrialEvictor(names)):
        evictor.add([2, 1, 0])
        evictor.remove([0, 1])
        assert len(evictor) == 1
        assert 1 not in evictor
        assert evictor.evict(1) == [2]
        evictor.add([1, 0])
        assert evictor.evict(2) == [1, 0]
