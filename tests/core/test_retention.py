"""Retention priorities: what is of lower priority goes first, and never a block before what follows it."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.eviction_policies import EVICTION_POLICIES
from octavo.core.evictor import LRUEvictor
from octavo.core.retention import Retention, RetentionEvictor
from tests.support.scheduling import Harness

POLICIES = sorted(EVICTION_POLICIES)


def ask(harness: Harness, head: int, retention: Retention | None = None) -> None:
    """A prompt of two blocks, and an output that fills the third."""
    harness.add([head] * 8, 5, retention=retention)
    harness.run()


def kept(harness: Harness, heads: range) -> list[int]:
    """Prompts that are still cached; asked without changing anything."""
    chains = {head: harness.kv.hasher.chain(None) for head in heads}
    for head, chain in chains.items():
        harness.kv.hasher.extend(chain, [head] * 8, 8)
    return [head for head, chain in chains.items() if harness.kv.pool.lookup(chain.hashes[1]) is not None]


@pytest.mark.parametrize("policy", POLICIES)
def test_lower_priorities_go_first(policy: str) -> None:
    harness = Harness(num_blocks=9, eviction_policy=policy)
    for head, priority in enumerate((60, 10, 90)):
        ask(harness, head, Retention(priority))
    for newcomer in range(3, 7):
        ask(harness, newcomer)
    assert kept(harness, range(7)) == [0, 2, 6]


@pytest.mark.parametrize("policy", POLICIES)
def test_prompts_from_before_the_first_priority_have_the_default_one(policy: str) -> None:
    harness = Harness(num_blocks=9, eviction_policy=policy)
    ask(harness, 0)
    ask(harness, 1, Retention(10))
    ask(harness, 2)
    harness.add([0] * 8, 5, retention=Retention(10))  # what others left is not worth less for it
    harness.run()
    ask(harness, 3)
    assert kept(harness, range(4)) == [0, 2, 3]
    ask(harness, 4)
    assert 0 in kept(harness, range(5))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_priority_ends(policy: str) -> None:
    harness = Harness(num_blocks=9, eviction_policy=policy)
    keeping = harness.kv.keeping
    keeping.tell_time(100.0)
    ask(harness, 0, Retention(80, 60.0))
    for newcomer in range(1, 5):
        ask(harness, newcomer)
    assert kept(harness, range(5)) == [0, 3, 4]
    keeping.tell_time(160.0)
    for newcomer in range(5, 9):
        ask(harness, newcomer)
    assert kept(harness, range(9)) == [6, 7, 8]


@pytest.mark.parametrize("policy", POLICIES)
def test_what_a_block_follows_is_at_least_of_its_priority(policy: str) -> None:
    """A cheap request leaves a head; a dear one goes on after it, so the head is as dear."""
    harness = Harness(num_blocks=12, eviction_policy=policy)
    ask(harness, 0, Retention(10))
    harness.add([0] * 8 + [1] * 5, 4, retention=Retention(90))
    harness.run()
    for newcomer in range(2, 6):
        ask(harness, newcomer)
    assert kept(harness, range(1)) == [0]
    request = harness.add([0] * 8 + [1] * 5, 1)
    harness.run()
    assert request.num_cached_tokens == 12


def test_who_asks_for_no_priority_has_the_plain_evictor() -> None:
    harness = Harness(num_blocks=9)
    ask(harness, 0)
    ask(harness, 1, Retention(35))
    assert type(harness.kv.pool.evictor) is LRUEvictor
    ask(harness, 2, Retention(36))
    assert type(harness.kv.pool.evictor) is RetentionEvictor


@pytest.mark.parametrize("policy", POLICIES)
def test_ends_of_blocks_that_have_left_are_swept(policy: str) -> None:
    names: list[bytes | None] = [b"%d" % block_id for block_id in range(8)]
    evictor = RetentionEvictor(names, EVICTION_POLICIES[policy](names))
    evictor.tell_time(0.0)
    for _ in range(3000):
        evictor.mark([1, 0], Retention(80, 1e6))
        evictor.add([1, 0])
        evictor.remove([0, 1])
    assert len(evictor._ends) < 1100
    assert len(evictor) == 0


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["use", "use", "evict", "wait"]),
        st.integers(0, 6),
        st.integers(1, 4),
        st.sampled_from([None, None, Retention(5), Retention(50), Retention(70, 3), Retention(90, 8), Retention(90)]),
    ),
    max_size=60,
)


@pytest.mark.parametrize("policy", POLICIES)
@given(events=EVENTS)
def test_any_order_of_events(policy: str, events: list[tuple[str, int, int, Retention | None]]) -> None:
    """Chains in a tree of 30 blocks are used to some depth and released; each evicted block is a leaf, and no other
    leaf was of lower priority."""
    parents = [-1] + [(block_id - 1) // 2 for block_id in range(1, 30)]
    names: list[bytes | None] = [None] * 30
    evictor = RetentionEvictor(names, EVICTION_POLICIES[policy](names))
    now = 0.0
    evictor.tell_time(now)
    for event, which, amount, retention in events:
        if event == "wait":
            now += amount
            evictor.tell_time(now)
        elif event == "use":
            block_id, chain = 14 + which * 2 + amount % 2, []
            while block_id >= 0:
                chain.append(block_id)
                block_id = parents[block_id]
            chain = chain[max(0, len(chain) - amount) :]
            evictor.remove([block_id for block_id in chain if block_id in evictor])
            for block_id in chain:
                names[block_id] = b"%d" % block_id
            evictor.mark(chain, retention or Retention())
            evictor.add(chain)
        else:
            for _ in range(min(amount, len(evictor))):
                cached = [block_id for block_id in range(30) if block_id in evictor]
                leaves = set(cached) - {parents[block_id] for block_id in cached}
                lowest = min(map(evictor.priority, leaves))
                priorities = list(map(evictor.priority, range(30)))
                (evicted,) = evictor.evict(1)
                assert evicted in leaves
                assert priorities[evicted] == lowest
                names[evicted] = None
        cached = [block_id for block_id in range(30) if block_id in evictor]
        assert len(evictor) == len(cached) == sum(name is not None for name in names)
        for block_id in cached:
            parent_id = parents[block_id]
            assert parent_id < 0 or evictor.priority(parent_id) >= evictor.priority(block_id)
    evictor.tell_time(inf)
    assert sorted(evictor.evict(len(evictor))) == [block_id for block_id in range(30) if names[block_id] is not None]


def test_a_priority_ends_for_what_is_left_on_both_sides_of_a_hit() -> None:
    """In a layer group with a window a hit takes from the middle of what a sequence left."""
    names: list[bytes | None] = [bytes([block_id]) for block_id in range(6)]
    evictor = RetentionEvictor(names, LRUEvictor())
    evictor.tell_time(0)
    evictor.mark(range(6), Retention(80, 5))
    evictor.add([5, 4, 3, 2, 1, 0])
    evictor.remove([3, 2])
    evictor.tell_time(10)
    assert [evictor.priority(block_id) for block_id in (5, 4, 1, 0)] == [35] * 4
    assert evictor.evict(4) == [5, 4, 1, 0]
