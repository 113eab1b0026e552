"""The host pool as a tier of the prefix cache: what the device evicts lives on and comes back by copy."""

import pytest

from octavo.core.disk_tier import DiskTier
from octavo.core.host_pool import HostPool
from octavo.core.kv_types import CacheConfig
from octavo.core.request import Request, Status
from octavo.core.step import StepPlan
from tests.support.fake_runner import expected_output
from tests.support.scheduling import Harness

DEPTHS = pytest.mark.parametrize("depth", [1, 2])
GROUPS = pytest.mark.parametrize("num_groups", [1, 2])

PROMPT = list(range(12))
"""Three blocks."""


def _host(num_blocks: int, keeps_evicted: bool = True) -> HostPool:
    """One without a disk tier below it."""
    return HostPool(num_blocks, keeps_evicted, DiskTier(0))


def _filled(host: HostPool, device_ids: list[int], names: list[bytes], step_id: int = 0) -> None:
    """Contents that the device evicts, in this order, have landed in the host pool."""
    host.keep_evicted(device_ids, names)
    host.issue(step_id)
    host.land(step_id)


def _names(host: HostPool) -> list[bytes]:
    return sorted(name for name in host.pool.names if name)


def test_off_by_default() -> None:
    config = CacheConfig(num_blocks=8)
    assert (config.num_host_blocks, config.keep_evicted) == (0, False)
    assert not _host(8, keeps_evicted=False).keeps_evicted
    assert not _host(0).keeps_evicted


def test_contents_are_found_once_they_have_landed() -> None:
    host = _host(4)
    host.keep_evicted([7], [b"a"])
    moves = host.issue(0)
    (copy,) = moves.swap_outs
    assert copy.source == 7
    assert host.pool.lookup(b"a") is None
    assert (host.num_cached, host.num_swapped) == (1, 0)
    host.land(0)
    assert host.pool.lookup(b"a") == copy.target
    assert (host.num_cached, host.num_swapped, host.pool.num_free) == (1, 0, 4)


def test_where_room_is_short_what_is_worth_most_is_kept() -> None:
    """The device evicts what is worth least first."""
    host = _host(3)
    _filled(host, [1, 2, 3, 4, 5], [b"a", b"b", b"c", b"d", b"e"])
    assert _names(host) == [b"c", b"d", b"e"]


def test_leaves_leave_first() -> None:
    """A chain root, middle, leaf, evicted leaf first; its leaf goes when a sequence is swapped out, then its middle."""
    host = _host(4)
    _filled(host, [1, 2, 3], [b"leaf", b"middle", b"root"])
    for left in ([b"leaf", b"middle", b"root"], [b"middle", b"root"], [b"root"], []):
        assert host.take([9]) is not None
        assert _names(host) == left
    assert host.take([9]) is None
    assert (host.num_cached, host.num_swapped) == (0, 4)


def test_a_hit_makes_the_whole_chain_young() -> None:
    host = _host(4)
    _filled(host, [1, 2], [b"leaf", b"root"])
    _filled(host, [3, 4], [b"other leaf", b"other root"], step_id=1)
    chain = host.pool.lookup_chain([b"root", b"leaf"])
    host.pool.acquire(chain)
    host.give(chain, [5, 6])
    host.issue(2)
    host.land(2)
    host.take([7, 8, 9])
    assert _names(host) == [b"root"]


def test_sequences_that_are_swapped_out_are_not_pushed_out_by_the_cache() -> None:
    host = _host(3)
    kept = host.take([1, 2])
    _filled(host, [3, 4], [b"a", b"b"])
    assert _names(host) == [b"b"]
    host.keep_evicted([5], [b"c"])
    assert kept is not None
    assert all(host.pool.ref_counts[block_id] == 1 for block_id in kept)


def test_one_name_is_never_in_two_blocks() -> None:
    """Contents that are evicted, computed again and evicted again while the first copy is still on its way."""
    host = _host(4)
    host.keep_evicted([1, 2], [b"b", b"a"])
    host.issue(0)
    host.keep_evicted([3], [b"a"])
    host.issue(1)
    host.land(1)
    assert _names(host) == [b"a", b"b"]
    assert host.pool.num_cached == host.num_cached == 2
    _filled(host, [5], [b"a"], step_id=2)
    assert host.num_swapped_out == 3, "what is there already is not copied again"


def test_a_failed_step_leaves_nothing() -> None:
    host = _host(4)
    host.keep_evicted([1], [b"a"])
    host.issue(0)
    assert len(host.roll_back()) == 1
    assert (_names(host), host.num_cached, host.pool.num_free) == ([], 0, 4)


def test_forgetting_takes_what_is_on_its_way_too() -> None:
    host = _host(4)
    _filled(host, [1], [b"a"])
    host.keep_evicted([2], [b"b"])
    host.issue(1)
    host.keep_evicted([3], [b"c"])
    host.forget_cached()
    host.issue(2)
    host.land(2)
    assert (_names(host), host.num_cached, host.pool.num_free) == ([], 0, 4)


def _evicted_prompt(depth: int = 1, num_groups: int = 1, keep_evicted: bool = True) -> Harness:
    """PROMPT has been computed; then a request took the whole pool, so that all of PROMPT went to the host."""
    harness = Harness(
        num_blocks=8 * num_groups,
        num_groups=num_groups,
        depth=depth,
        num_host_blocks=50 * num_groups,
        keep_evicted=keep_evicted,
    )
    harness.add(PROMPT, 1)
    harness.run()
    harness.add([99] * 28, 3)
    harness.run()
    return harness


def _check_answers(harness: Harness) -> None:
    for request in harness.requests:
        prompt = request.token_ids[: request.num_prompt_tokens]
        assert request.status is Status.LENGTH
        assert request.token_ids == prompt + expected_output(prompt, request.max_total_tokens - len(prompt))


@DEPTHS
@GROUPS
def test_evicted_blocks_come_back_by_copy(depth: int, num_groups: int) -> None:
    harness = _evicted_prompt(depth, num_groups)
    assert all(harness.kv.pool.lookup(name) is None for name in harness.kv.host.pool.names if name)
    hits = harness.scheduler.counters.prefix_hits
    request = harness.add([*PROMPT, 50], 5)
    harness.run()
    plan = next(plan for plan in harness.runner.plans if plan.swap_ins)
    assert len(plan.swap_ins) == harness.kv.host.num_swapped_in == 3 * num_groups
    assert plan.num_tokens == 1
    assert request.num_cached_tokens == harness.scheduler.counters.prefix_hits - hits == 12
    _check_answers(harness)


@DEPTHS
def test_the_device_first_then_the_host(depth: int) -> None:
    """The head of a chain is on the device, its rest on the host: one hit of both."""
    harness = _evicted_prompt(depth)
    harness.add([*PROMPT[:4], 70], 1)
    harness.run()
    request = harness.add([*PROMPT, 50], 5)
    harness.run()
    assert [len(plan.swap_ins) for plan in harness.runner.plans if plan.swap_ins] == [1, 2]
    assert request.num_cached_tokens == 12
    _check_answers(harness)


@DEPTHS
def test_without_the_tier_they_are_computed(depth: int) -> None:
    harness = _evicted_prompt(depth, keep_evicted=False)
    request = harness.add([*PROMPT, 50], 5)
    harness.run()
    assert request.num_cached_tokens == harness.kv.host.num_swapped_out == harness.kv.host.num_swapped_in == 0
    _check_answers(harness)


@DEPTHS
def test_a_reset_forgets_the_host_too(depth: int) -> None:
    harness = _evicted_prompt(depth)
    harness.scheduler.reset_prefix_cache()
    assert harness.kv.host.num_cached == 0
    request = harness.add([*PROMPT, 50], 5)
    harness.run()
    assert request.num_cached_tokens == 0
    _check_answers(harness)


@DEPTHS
def test_a_request_that_fails_with_every_hit_is_found_out(depth: int) -> None:
    """Beside one that runs: what a failed step brought in is not brought in again, so the guilty one is tried alone."""
    harness = _evicted_prompt(depth)
    innocent = harness.add([5] * 4, 12)
    guilty = harness.add([*PROMPT, 50], 3)

    def fails(plan: StepPlan) -> None:
        if guilty.row_id in plan.row_ids:
            raise RuntimeError("this request always fails")

    harness.runner.fails = fails
    harness.run(max_steps=200)
    statuses = [_status(request) for request in (innocent, guilty)]
    assert statuses == [Status.LENGTH, Status.FAILED]


@DEPTHS
def test_a_fault_that_passes_costs_the_hit_and_nothing_else(depth: int) -> None:
    harness = _evicted_prompt(depth)
    failed: list[StepPlan] = []

    def fails(plan: StepPlan) -> None:
        if plan.swap_ins and not failed:
            failed.append(plan)
            harness.runner.memories[0].clear()
            raise RuntimeError("injected")

    harness.runner.fails = fails
    harness.add([*PROMPT, 50], 5)
    harness.run()
    assert failed
    _check_answers(harness)


def _status(request: Request) -> Status:
    return request.status
