"""Swapping: whatever the host pool holds, however small the pools, every request gets on and ends with the answer it
has alone in a large pool; no two swapped sequences can hold the pool from each other (design, Decided 7)."""

import random
from collections import Counter
from itertools import chain

import pytest

from octavo.core.hashing import pack_tokens
from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig, FilledBlocks
from octavo.core.request import Request, Status
from octavo.core.scheduler_types import PREEMPTION_MODES, PreemptionMode
from octavo.core.step import StepPlan
from tests.support.fake_runner import expected_output
from tests.support.scheduling import Harness

DEPTHS = pytest.mark.parametrize("depth", [1, 2])


def _small_harness(rng: random.Random) -> Harness:
    """Pools in which two or three requests do not fit; a host pool of no block, one, few or more than are needed."""
    num_groups = rng.choice([1, 1, 2])
    harness = Harness(
        num_blocks=rng.randint(6, 16) * num_groups,
        block_size=rng.choice([1, 2, 4]),
        num_groups=num_groups,
        depth=rng.choice([1, 2]),
        max_num_seqs=rng.randint(2, 8),
        max_num_batched_tokens=rng.randint(8, 40),
        prefix_caching=rng.random() < 0.5,
        num_host_blocks=rng.choice([0, 1, 2, 5, 12, 300]) * num_groups,
        keep_evicted=rng.random() < 0.5,
        preemption_mode=rng.choice(PREEMPTION_MODES),
    )
    costs = harness.scheduler.population.costs
    costs.seconds_per_token = rng.choice([None, 0.001, 0.01])
    costs.seconds_per_block = rng.choice([0.0, 0.001, 0.02])
    return harness


def _add(harness: Harness, rng: random.Random) -> None:
    """A request that fits into the pool, but hardly beside another. Few distinct heads, so that prefixes are shared."""
    limit = harness.scheduler.door.max_tokens_per_sequence
    head = [rng.choice([0, 1]) * 100 + i for i in range(rng.choice([0, 0, 4, 9]))]
    prompt = (head + [rng.randrange(50) for _ in range(rng.randint(1, 6))])[: limit - 1]
    max_tokens = rng.randint(1, min(30, limit - len(prompt)))
    wanted = {"prompt_logprobs": 0} if rng.random() < 0.1 else {}
    harness.add(prompt, max_tokens, salt=rng.choice([None, None, "a"]), **wanted)


def _finish(harness: Harness) -> None:
    """To the end: no hang, every block of both pools free, nothing held."""
    for _ in range(20_000):
        if not harness.step():
            break
    assert not harness.kv.held_blocks
    assert not harness.kv.host.held_blocks
    harness.run()
    assert all(request.swapped is None for request in harness.requests)


def _check_answer(request: Request) -> None:
    prompt, output = request.token_ids[: request.num_prompt_tokens], request.token_ids[request.num_prompt_tokens :]
    expected = expected_output(prompt, request.max_total_tokens - request.num_prompt_tokens)
    assert output == expected[: len(output)]
    assert (request.status is Status.LENGTH) == (output == expected) or request.status is Status.ABORTED


def _run_at_random(harness: Harness, rng: random.Random, passing_faults: float) -> None:
    """Arrivals, aborts (of those who are swapped out, too), resets of the cache and faults, then to the end."""

    def fails(plan: StepPlan) -> None:
        if len(plan.row_ids) > 1 and rng.random() < passing_faults:
            raise RuntimeError("a fault that passes")

    harness.runner.fails = fails
    for _ in range(rng.randint(2, 6)):
        _add(harness, rng)
    for _ in range(rng.randint(20, 120)):
        action = rng.random()
        swapped = [request for request in harness.requests if request.swapped]
        if action < 0.05:
            _add(harness, rng)
        elif action < 0.08:
            harness.scheduler.abort(rng.choice(swapped or harness.requests))
            harness.check()
        elif action < 0.10:
            harness.scheduler.reset_prefix_cache()
            harness.check()
        elif action < 0.6:
            if len(harness.pending) < harness.depth:
                harness.plan()
        else:
            harness.land()
    _finish(harness)


@pytest.mark.parametrize("seed", range(100))
def test_every_request_ends_with_the_answer_it_has_alone(seed: int) -> None:
    rng = random.Random(seed)
    harness = _small_harness(rng)
    _run_at_random(harness, rng, passing_faults=rng.choice([0.0, 0.0, 0.05, 0.2]))
    for request in harness.requests:
        _check_answer(request)
        assert request.status in (Status.LENGTH, Status.ABORTED)


def test_the_schedules_do_swap() -> None:
    """The power check of the test above: what it is about does happen, in it."""
    seen: Counter[str] = Counter()
    for seed in range(16):
        rng = random.Random(seed)
        harness = _small_harness(rng)
        _run_at_random(harness, rng, passing_faults=rng.choice([0.0, 0.0, 0.05, 0.2]))
        counters, host = harness.scheduler.counters, harness.kv.host
        seen["recomputed"] += counters.num_preemptions > counters.num_swaps
        seen["swapped"] += counters.num_swaps > 1
        seen["both"] += 0 < counters.num_swaps < counters.num_preemptions
        seen["brought back"] += host.num_swapped_in > 0
        seen["kept for the cache"] += host.keeps_evicted and host.num_swapped_out > 0
        seen["aborted"] += any(
            request.status is Status.ABORTED and request.num_preemptions for request in harness.requests
        )
    assert min(seen.values()) >= 1, seen
    assert len(seen) == 6


SWAP_CASES = [("swap", 0), ("swap", 1), ("swap", 7), ("swap", 400), ("auto", 400), ("recompute", 400)]


def _three(mode: PreemptionMode, num_host_blocks: int, depth: int, **settings: object) -> Harness:
    """Three requests of 10 blocks each in a pool of 12: the two younger ones are preempted, more than once."""
    settings = {"num_blocks": 12, "prefix_caching": False} | settings
    harness = Harness(depth=depth, num_host_blocks=num_host_blocks, preemption_mode=mode, **settings)  # type: ignore[arg-type]
    for number in range(3):
        harness.add([number, 1, 2, 3, 4, 5, 6, 7][: 6 + number], 34 - number)
    return harness


NUM_COMPUTED_ONCE = 3 * 39


def _first_swapped(harness: Harness) -> Request:
    """Steps until a request is swapped out."""
    while not (swapped := [request for request in harness.requests if request.swapped]):
        assert harness.step()
    return swapped[0]


def _check_answers(harness: Harness) -> None:
    for request in harness.requests:
        _check_answer(request)
        assert request.status is Status.LENGTH


@DEPTHS
@pytest.mark.parametrize(("mode", "num_host_blocks"), SWAP_CASES)
def test_swapped_sequences_hold_no_block_of_the_pool(mode: PreemptionMode, num_host_blocks: int, depth: int) -> None:
    harness = _three(mode, num_host_blocks, depth)
    most_swapped = 0
    while harness.step():
        running = harness.scheduler.running
        tables = [request.tables.groups for request in running if request.tables]
        in_tables = set(chain.from_iterable(chain.from_iterable(tables)))
        assert harness.kv.pool.num_blocks - harness.kv.pool.num_free <= len(in_tables)
        most_swapped = max(most_swapped, sum(request.swapped is not None for request in harness.requests))
    counters = harness.scheduler.counters
    assert counters.num_preemptions >= 2
    assert most_swapped == (0 if mode == "recompute" or num_host_blocks <= 1 else 1 if num_host_blocks == 7 else 2)
    assert harness.kv.host.num_swapped_in == harness.kv.host.num_swapped_out
    _finish(harness)
    _check_answers(harness)


@DEPTHS
def test_a_full_swap_space_means_recompute(depth: int) -> None:
    harness = _three("swap", 7, depth)
    harness.run()
    counters = harness.scheduler.counters
    assert 0 < counters.num_swaps < counters.num_preemptions
    _check_answers(harness)


def _num_computed(harness: Harness) -> int:
    return sum(plan.num_tokens for plan in harness.runner.plans)


@DEPTHS
def test_what_was_swapped_out_is_not_computed_again(depth: int) -> None:
    swapping, recomputing = _three("swap", 400, depth), _three("recompute", 400, depth)
    for harness in (swapping, recomputing):
        harness.run()
    assert _num_computed(swapping) == NUM_COMPUTED_ONCE
    assert _num_computed(recomputing) > NUM_COMPUTED_ONCE
    assert swapping.scheduler.counters.num_preempted_tokens == 0
    assert recomputing.scheduler.counters.num_preempted_tokens == _num_computed(recomputing) - NUM_COMPUTED_ONCE


def test_blocks_in_the_prefix_cache_are_not_moved() -> None:
    """All blocks of a victim but its tail are in the cache: it swaps out one block."""
    harness = _three("swap", 400, 1, prefix_caching=True)
    harness.run()
    counters = harness.scheduler.counters
    assert counters.num_swaps >= 1
    assert harness.kv.host.num_swapped_out == counters.num_swaps
    _check_answers(harness)


def test_a_sequence_with_nothing_of_its_own_is_not_swapped() -> None:
    """All it has computed is in the cache: no block moves, and nothing counts as a swap."""
    harness = Harness(num_blocks=6, num_host_blocks=50, preemption_mode="swap")
    harness.add([1] * 8, 12)
    harness.add([2] * 8, 12)
    harness.run()
    counters = harness.scheduler.counters
    assert counters.num_preemptions == 1
    assert counters.num_swaps == counters.num_preempted_tokens == harness.kv.host.num_swapped_out == 0
    _check_answers(harness)


@DEPTHS
@pytest.mark.parametrize("is_done", [False, True], ids=["moves not made", "moves made"])
@pytest.mark.parametrize("moves", ["swap_outs", "swap_ins"])
def test_a_failed_step_with_moves_in_it(moves: str, is_done: bool, depth: int) -> None:
    """Whether the step moved anything before it failed is not known; what it was to fill counts as nothing."""
    harness = _three("swap", 400, depth)
    failed: list[StepPlan] = []

    def fails(plan: StepPlan) -> None:
        if getattr(plan, moves) and not failed:
            failed.append(plan)
            if not is_done:
                memory = harness.runner.host_memories if moves == "swap_outs" else harness.runner.memories
                memory[0].clear()
            raise RuntimeError("injected")

    harness.runner.fails = fails
    _finish(harness)
    assert failed
    assert harness.scheduler.counters.num_swaps >= 2
    _check_answers(harness)


@DEPTHS
def test_an_aborted_request_gives_its_swap_space_back(depth: int) -> None:
    harness = _three("swap", 400, depth)
    victim = _first_swapped(harness)
    harness.scheduler.abort(victim)
    harness.check()
    assert victim.swapped is None
    assert harness.kv.host.pool.num_free == 400
    _finish(harness)
    assert [request.status for request in harness.requests].count(Status.ABORTED) == 1
    for request in harness.requests:
        _check_answer(request)


@DEPTHS
def test_a_swapped_sequence_whose_cached_blocks_are_gone_is_computed_again(depth: int) -> None:
    harness = _three("swap", 400, depth, prefix_caching=True)
    victim = harness.requests[2]
    while victim.num_computed_tokens < 13:
        assert harness.step()
    while harness.pending:
        harness.land()
    harness.scheduler.population.preempt(victim)
    assert victim.swapped is not None
    assert victim.swapped.num_tokens >= 13
    assert len(victim.swapped.host_ids[0]) <= 1, "three blocks or more are in the prefix cache alone"
    harness.scheduler.reset_prefix_cache()
    _finish(harness)
    assert _num_computed(harness) > NUM_COMPUTED_ONCE
    _check_answers(harness)


@DEPTHS
def test_auto_weighs_measured_costs(depth: int) -> None:
    """A copy that takes longer than computing is not made, one that is cheap is."""
    swaps = []
    for seconds_per_block in (1.0, 1e-6):
        harness = _three("auto", 400, depth)
        costs = harness.scheduler.population.costs
        costs.seconds_per_token, costs.seconds_per_block = 0.001, seconds_per_block
        harness.run()
        counters = harness.scheduler.counters
        swaps.append((counters.num_swaps, counters.num_preemptions))
        _check_answers(harness)
    (dear, dear_of), (cheap, cheap_of) = swaps
    assert dear == 0 < dear_of
    assert cheap == cheap_of > 0


def test_what_the_cache_has_meanwhile_is_taken_where_it_leads_further() -> None:
    """A request was swapped out in the midst of its prompt; then another one computed all of it."""
    config = CacheConfig(num_blocks=32, block_size=4, num_host_blocks=8)
    kv = KVCacheManager(config)
    token_ids = list(range(40))
    first = kv.allocate(kv.lookup_prefix(None, token_ids), 10, row_id=0, step_id=0)
    assert first is not None
    swapped = kv.save(first.tables, 10)
    kv.free(first.tables)
    chain = kv.hasher.chain(None)
    kv.hasher.extend(chain, token_ids, 40)
    other = kv.allocate(kv.lookup_prefix(None, token_ids), 40, row_id=1, step_id=0)
    assert other is not None
    packed = [pack_tokens(token_ids[start : start + 4]) for start in range(0, 40, 4)]
    kv.publish(other.tables, FilledBlocks(0, chain.hashes, chain.parents[:10], packed), None)
    hit = kv.lookup_prefix(chain, token_ids, swapped)
    assert hit.num_tokens == 39
    assert not any(hit.host_places)
