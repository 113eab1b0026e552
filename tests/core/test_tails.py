"""Tails, blocks that are not full: their names, their copies, their end."""

import pytest

from octavo.core.hashing import pack_tokens as pack
from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig, FilledBlocks
from octavo.core.request import Status
from tests.core.sharing import (
    DEPTHS,
    GROUPS,
    ask,
    check,
    fail_once,
    small,
)


@GROUPS
@DEPTHS
def test_a_tail_is_copied_whose_owner_goes_on_writing(depth: int, num_groups: int) -> None:
    """The prompt's tail has a name when it has landed; its owner fills the block while others copy from it."""
    harness = small(num_groups=num_groups, depth=depth, num_blocks=256)
    owner = harness.add([*range(10), 900], 12)
    while owner.num_output_tokens < 2:
        harness.step()
    followers = [harness.add([*range(10), 800 + i], 6) for i in range(5)]
    for _ in range(3):
        harness.step()
    assert owner.status is Status.RUNNING
    harness.run()
    check(harness)
    assert [request.num_cached_tokens for request in followers] == [10] * 5


def _manager(**settings: int) -> KVCacheManager:
    return KVCacheManager(CacheConfig(**{"num_blocks": 8, "block_size": 4} | settings))


def test_a_full_block_takes_the_name_of_its_tail_away() -> None:
    kv, tokens = _manager(), list(range(8))
    chain = kv.hasher.chain(None)
    kv.hasher.extend(chain, tokens, 6)
    allocation = kv.allocate(kv.lookup_prefix(None, tokens), 8, 0, 0)
    assert allocation is not None
    tables = allocation.tables
    kv.publish(tables, FilledBlocks(0, chain.hashes[:1], chain.parents[:1], [pack(tokens[:4])]), None)
    kv.publish_tail(tables, chain, tokens, 6)
    tail_name = kv.pool.names[tables.groups[0][1]]
    assert tail_name is not None
    assert kv.lookup_prefix(chain, [*range(7), 99]).num_tokens == 6
    kv.hasher.extend(chain, tokens, 8)
    kv.publish(tables, FilledBlocks(1, chain.hashes[1:], chain.parents[1:2], [pack(tokens[4:])]), None)
    assert kv.pool.lookup(tail_name) is None
    assert kv.pool.names[tables.groups[0][1]] == chain.hashes[1]
    assert kv.pool.num_named == 2
    assert kv.lookup_prefix(chain, [*range(7), 99]).num_tokens == 7


def test_of_two_equal_tails_one_is_kept() -> None:
    harness = small()
    twins = [harness.add([1, 2, 3, 4, 5, 6], 4), harness.add([1, 2, 3, 4, 5, 6], 4, prompt_logprobs=0)]
    harness.step()
    harness.step()
    assert [twin.num_output_tokens for twin in twins] == [1, 1]
    assert harness.kv.pool.num_named == 2
    harness.run()
    check(harness)


def test_a_tail_that_was_evicted_is_not_found() -> None:
    harness = small(num_blocks=8)
    assert ask(harness, [*range(10), 90]) == 0
    ask(harness, list(range(500, 525)))  # 7 of 8 blocks: the tail goes first, then its parents
    assert ask(harness, [*range(10), 80]) <= 4
    assert harness.kv.pool.num_named <= 8


@pytest.mark.parametrize("num_blocks", [9, 10])
def test_the_tail_is_evicted_before_its_parent(num_blocks: int) -> None:
    """It is a leaf: of 9 blocks with 3 in the cache, 7 are taken; of 10, with one more to spare, the tail as well."""
    harness = small(num_blocks=num_blocks)
    ask(harness, [*range(10), 90])
    ask(harness, list(range(500, 528)))
    assert ask(harness, [*range(10), 80]) == 8 if num_blocks == 9 else 10


def test_what_a_tail_is_copied_from_stays_until_the_step_has_landed() -> None:
    harness = small(num_blocks=8, depth=2)
    ask(harness, [*range(10), 90])
    request = harness.add([*range(10), 80], 2)
    harness.plan()
    plan = harness.runner.plans[-1]
    (copy,) = plan.copies
    assert harness.kv.held_blocks == [copy.source]
    harness.scheduler.abort(request)
    assert harness.kv.pool.ref_counts[copy.source] == 1
    harness.land()
    assert harness.kv.held_blocks == []


def test_the_host_keeps_no_tails() -> None:
    harness = small(num_blocks=8, num_host_blocks=16, keep_evicted=True)
    ask(harness, [*range(10), 90])
    ask(harness, list(range(500, 531)))
    harness.kv.land(1 << 60)
    names = {name for name in harness.kv.host.pool.names if name is not None}
    chain = harness.kv.hasher.chain(None)
    harness.kv.hasher.extend(chain, list(range(8)), 8)
    assert set(chain.hashes) <= names
    assert harness.kv.host.num_cached == 2
    assert ask(harness, [*range(10), 80]) == 8


@DEPTHS
def test_reset_prefix_cache_forgets_tails(depth: int) -> None:
    harness = small(depth=depth)
    running = harness.add([*range(10), 90], 20)
    for _ in range(8):
        harness.step()
    assert running.status is Status.RUNNING
    harness.scheduler.reset_prefix_cache()
    harness.check()
    assert harness.kv.pool.num_named == 0
    harness.run()
    assert harness.kv.pool.num_named == 0, "what is older than the reset is not published after it"
    assert ask(harness, [*range(10), 80]) == 0
    assert ask(harness, [*range(10), 70]) == 10


@GROUPS
@DEPTHS
def test_a_failed_step_with_the_copy_of_a_tail(depth: int, num_groups: int) -> None:
    """Its request is tried again, from the same tail: the copy is made again."""
    harness = small(depth=depth, num_groups=num_groups)
    ask(harness, [*range(10), 90])
    others = [harness.add([700 + i, 701], 12) for i in range(2)]
    harness.step(), harness.step()
    failed = fail_once(harness, lambda plan: bool(plan.copies))
    followers = [harness.add([*range(10), 80 + i], 6) for i in range(3)]
    harness.run()
    assert len(failed) == 1
    assert len(failed[0].copies) == 3 * num_groups
    check(harness)
    assert [request.num_cached_tokens for request in followers] == [10] * 3
    assert all(request.num_output_tokens == 12 for request in others)
    assert harness.kv.held_blocks == []


@DEPTHS
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_request_that_is_preempted_after_its_copy_has_failed(depth: int, mode: str) -> None:
    """What was to be copied is not there: it is neither published nor swapped out."""
    harness = small(depth=depth, num_host_blocks=64, preemption_mode=mode)
    ask(harness, [*range(10), 90])
    failed = fail_once(harness, lambda plan: bool(plan.copies))
    followers = [harness.add([*range(10), 80 + i], 6) for i in range(2)]
    while not failed:
        assert harness.step()
    harness.scheduler.population.preempt(followers[1])
    harness.check()
    harness.run()
    check(harness)
    assert harness.kv.held_blocks == []


@DEPTHS
def test_a_request_that_is_aborted_after_its_copy_has_failed(depth: int) -> None:
    harness = small(depth=depth)
    ask(harness, [*range(10), 90])
    failed = fail_once(harness, lambda plan: bool(plan.copies))
    followers = [harness.add([*range(10), 80 + i], 6) for i in range(2)]
    while not failed:
        assert harness.step()
    for follower in followers:
        harness.scheduler.abort(follower)
        harness.check()
    assert ask(harness, [*range(10), 70]) == 10
    assert harness.kv.held_blocks == []
