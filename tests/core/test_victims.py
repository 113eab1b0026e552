"""Who is preempted, what it costs, and what a step that preempted may not do (issue: the policy is a function)."""

import random

import pytest

from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig, PrefixHit
from octavo.core.policy import Loss, least_work_lost, prefers_swap
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler_types import PreemptionCosts, PreemptionMode
from tests.support.scheduling import Harness


def _victim(losses: dict[int, tuple[int, int]]) -> int | None:
    """Rank of the victim among requests of these ranks, each with the tokens it loses and the blocks it frees."""
    candidates = []
    for order in losses:
        candidates.append(Request(f"r{order}", [1], SamplingParams(), max_tokens=10))
        candidates[-1].rank = order
    victim = least_work_lost(candidates, lambda request: Loss(*losses[request.rank]))
    return None if victim is None else victim.rank


def test_the_one_that_loses_the_least_work_goes() -> None:
    assert _victim({1: (50, 4), 2: (7, 1), 3: (30, 2)}) == 2


def test_of_equals_the_last_in_rank_goes() -> None:
    assert _victim({1: (7, 1), 2: (7, 1), 3: (30, 2)}) == 2
    assert _victim({2: (7, 1), 1: (7, 1), 3: (7, 1)}) == 3


def test_one_that_frees_nothing_goes_only_if_all_are_like_that() -> None:
    assert _victim({1: (50, 4), 2: (0, 0), 3: (30, 2)}) == 3
    assert _victim({1: (50, 0), 2: (7, 0)}) == 2
    assert _victim({}) is None


def test_what_others_hold_is_no_loss() -> None:
    """A choice of a long prompt loses its own few tokens; a short request of its own would lose more."""
    harness = Harness(num_blocks=60, max_num_batched_tokens=60)
    choices = harness.add_choices([1] * 40, 2, 20)
    alone = harness.add([2] * 10, 20)
    for _ in range(6):
        harness.step()
    loss_of = harness.scheduler.population.loss_of
    losses = [loss_of(request) for request in (*choices, alone)]
    assert losses[0].num_tokens == losses[1].num_tokens == choices[0].num_computed_tokens - 40
    assert losses[0].num_tokens < losses[2].num_tokens == alone.num_computed_tokens
    assert losses[1].num_blocks == 1
    assert losses[2].num_blocks == len(alone.tables.groups[0] if alone.tables else ())


def test_choices_that_share_all_their_blocks_give_way() -> None:
    """One that goes frees nothing, and an older one needs a block: one after the other they go."""
    harness = Harness(num_blocks=13, block_size=1, max_num_seqs=4, max_num_batched_tokens=5)
    harness.add([1, 2, 3, 4, 5, 0], 1)
    choices = harness.add_choices([1, 2, 3, 4, 5, 6, 7, 0], 4, 5)
    harness.run()
    freed = [preemption.num_freed_blocks for preemption in harness.scheduler.take_preemptions()]
    assert len(freed) >= 2
    assert freed[0] == 0
    for choice in choices:
        harness.check_answer(choice)


def test_a_sequence_frees_what_it_alone_refers_to() -> None:
    kv = KVCacheManager(CacheConfig(8, 4))
    allocation = kv.allocate(PrefixHit(0, ((),)), 10, 0, 0)
    assert allocation is not None
    tables = allocation.tables
    assert (kv.num_exclusive_blocks(tables), kv.num_shared_tokens(tables)) == (3, 0)
    child = kv.fork(tables, 10, 1)
    assert (kv.num_exclusive_blocks(tables), kv.num_shared_tokens(tables)) == (0, 12)
    assert kv.extend(child, 11, 0) is not None
    assert (kv.num_exclusive_blocks(child), kv.num_shared_tokens(child)) == (1, 8)


PREFERENCES: list[tuple[PreemptionMode, float | None, float, bool]] = [
    ("auto", 0.001, 0.0079, True),
    ("auto", 0.001, 0.0081, False),
    ("auto", None, 1000.0, True),
    ("swap", 0.001, 1000.0, True),
    ("recompute", 0.001, 0.0, False),
    ("recompute", None, 0.0, False),
]


@pytest.mark.parametrize(("mode", "seconds_per_token", "seconds_per_block", "is_swapped"), PREFERENCES)
def test_swap_or_recompute(
    mode: PreemptionMode, seconds_per_token: float | None, seconds_per_block: float, is_swapped: bool
) -> None:
    """64 tokens in 4 blocks, which are copied twice: a block may take as long as 8 tokens."""
    costs = PreemptionCosts(seconds_per_token, seconds_per_block)
    assert prefers_swap(mode, num_tokens=64, num_blocks=4, costs=costs) is is_swapped


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_the_oldest_is_never_preempted_and_nobody_comes_in_meanwhile(seed: int, depth: int) -> None:
    rng = random.Random(seed)
    harness = Harness(
        num_blocks=rng.randint(8, 14),
        depth=depth,
        prefix_caching=rng.random() < 0.5,
        num_host_blocks=rng.choice([0, 3, 40]),
        preemption_mode="swap",
    )
    for _ in range(6):
        prompt = [rng.randrange(3) for _ in range(rng.randint(1, 12))]
        harness.add(prompt, rng.randint(1, 30 - len(prompt)))
    preemptions = []
    while harness.scheduler.has_work:
        before = list(harness.scheduler.running)
        if len(harness.pending) == depth or not harness.plan():
            assert harness.land()
        elif gone := harness.scheduler.take_preemptions():
            assert before[0].request_id not in {preemption.request_id for preemption in gone}
            assert set(harness.scheduler.running) < set(before)
            preemptions += gone
    counters = harness.scheduler.counters
    assert len(preemptions) == counters.num_preemptions
    assert sum(preemption.num_lost_tokens for preemption in preemptions) == counters.num_preempted_tokens
    assert sum(preemption.num_swapped_tokens > 0 for preemption in preemptions) == counters.num_swaps
    assert all(preemption.num_freed_blocks > 0 for preemption in preemptions)
