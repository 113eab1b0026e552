"""Sharing by token, not by page: hits that end inside a block, copies of tails, and those who wait for them."""

from collections.abc import Callable

import pytest

from octavo.core.hashing import pack_tokens as pack
from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig, FilledBlocks
from octavo.core.request import Request, Status
from octavo.core.step import StepPlan
from tests.support.scheduling import Harness

DEPTHS = pytest.mark.parametrize("depth", [1, 2])
GROUPS = pytest.mark.parametrize("num_groups", [1, 2])
SYSTEM = list(range(341))
SIZE = 16


def _question(number: int, length: int = 7) -> list[int]:
    """One that no other question begins as."""
    return [500 + number, *(400 + i for i in range(length - 1))]


def _large(depth: int = 1, num_groups: int = 1, **given: int) -> Harness:
    settings = {"num_blocks": 1200 * num_groups, "max_num_seqs": 40, "max_num_batched_tokens": 256} | given
    return Harness(block_size=SIZE, depth=depth, num_groups=num_groups, **settings)


def _small(**settings: object) -> Harness:
    return Harness(**{"num_blocks": 64, "max_num_batched_tokens": 64} | settings)  # type: ignore[arg-type]


def _num_prompt_tokens_computed(harness: Harness) -> int:
    """Tokens that plans computed, without the one that each sequence computes for each token it decodes."""
    num_decoded = sum(request.num_output_tokens - 1 for request in harness.requests)
    return sum(plan.num_tokens for plan in harness.runner.plans) - num_decoded


def _check(harness: Harness) -> None:
    """All have ended by themselves, with the answers that each has alone."""
    for request in harness.requests:
        assert request.status is Status.LENGTH
        harness.check_answer(request)


def _ask(harness: Harness, prompt: list[int], **params: object) -> int:
    """Tokens of this prompt that the cache had, when it is asked alone."""
    request = harness.add(prompt, 1, **params)  # type: ignore[arg-type]
    harness.run()
    harness.check_answer(request)
    assert request.num_cached_tokens is not None
    return request.num_cached_tokens


def _fail_once(harness: Harness, when: Callable[[StepPlan], bool]) -> list[StepPlan]:
    failed: list[StepPlan] = []

    def fails(plan: StepPlan) -> None:
        if not failed and when(plan):
            failed.append(plan)
            raise RuntimeError("injected once")

    harness.runner.fails = fails
    return failed


# One system prompt, many questions


@DEPTHS
@GROUPS
def test_a_system_prompt_is_computed_once_one_question_after_another(depth: int, num_groups: int) -> None:
    harness = _large(depth, num_groups, max_num_seqs=4)
    for number in range(8):
        assert _ask(harness, SYSTEM + _question(number)) == (341 if number else 0)
    assert _num_prompt_tokens_computed(harness) == 341 + 8 * 7
    assert harness.scheduler.counters.prefix_hits == 7 * 341
    assert harness.scheduler.counters.prefix_queries == 8 * 348
    assert harness.kv.num_copies == 0, "what a hit copies is no copy-on-write"


@DEPTHS
@pytest.mark.parametrize("length", [1, 7, 11, 12, 40])
def test_a_system_prompt_is_computed_once_by_32_questions_at_once(depth: int, length: int) -> None:
    """Also with questions that end inside the block of the system prompt's end, just at its end (341 + 11) or after."""
    harness = _large(depth)
    for number in range(32):
        harness.add(SYSTEM + _question(number, length), 4)
    harness.run()
    _check(harness)
    assert [request.num_cached_tokens for request in harness.requests] == [0] + [341] * 31
    assert _num_prompt_tokens_computed(harness) == 341 + 32 * length
    assert harness.scheduler.counters.prefix_hits == 31 * 341


@DEPTHS
@pytest.mark.parametrize("budget", [8, 64, 2048])
def test_questions_of_different_lengths_at_once(depth: int, budget: int) -> None:
    """The first is shorter than what is left of the block, others reach over many; few have a row at a time."""
    harness = _large(depth, max_num_batched_tokens=budget, max_num_seqs=6)
    lengths = [1, 5, 30, 2, 11, 12, 100, 16, 3] * 2
    for number, length in enumerate(lengths):
        harness.add(SYSTEM + _question(number, length), 6)
    harness.run()
    _check(harness)
    assert _num_prompt_tokens_computed(harness) == 341 + sum(lengths)


@DEPTHS
@GROUPS
@pytest.mark.parametrize("at_once", [False, True])
def test_prompts_shorter_than_a_block(depth: int, num_groups: int, at_once: bool) -> None:
    """9 tokens of a system prompt, in blocks of 16."""
    harness = _large(depth, num_groups)
    for number in range(8):
        harness.add([*range(9), *_question(number, 1 + number % 5)], 3)
        if not at_once:
            harness.run()
    harness.run()
    _check(harness)
    assert [request.num_cached_tokens for request in harness.requests] == [0] + [9] * 7
    assert _num_prompt_tokens_computed(harness) == 9 + sum(1 + number % 5 for number in range(8))


def test_a_system_prompt_whose_end_is_the_end_of_a_block() -> None:
    harness = _large()
    for number in range(8):
        harness.add([*range(336), *_question(number)], 3)
    harness.run()
    _check(harness)
    assert _num_prompt_tokens_computed(harness) == 336 + 8 * 7


@DEPTHS
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 32, 341])
def test_of_a_prompt_that_is_cached_as_a_whole_one_token_is_computed(depth: int, length: int) -> None:
    harness = _large(depth)
    for turn in range(3):
        before = sum(plan.num_tokens for plan in harness.runner.plans)
        assert _ask(harness, SYSTEM[:length]) == (length - 1 if turn else 0)
        assert sum(plan.num_tokens for plan in harness.runner.plans) - before == (1 if turn else length)


def test_a_conversation_goes_on_where_its_last_turn_ended() -> None:
    """The answer is published too, its last block as far as it is filled; its last token was never computed."""
    harness = _large()
    prompt = [1, 2, 3]
    for turn in range(5):
        request = harness.add(prompt, 9)
        harness.run()
        assert request.num_cached_tokens == (0 if turn == 0 else len(prompt) - 4 - 1)
        prompt = [*request.token_ids, 7, 8, 9, 10]


def test_the_longest_of_many_tails_is_taken() -> None:
    harness = _small(block_size=8)
    for end in ([1, 2, 9], [1, 2, 3, 4, 9], [1, 2, 3, 9], [5, 6]):
        _ask(harness, [*range(100, 108), *end])
    assert _ask(harness, [*range(100, 108), 1, 2, 3, 4, 5, 6, 7, 8]) == 8 + 4
    assert _ask(harness, [*range(100, 108), 5, 5]) == 8 + 1
    assert _ask(harness, [*range(100, 108), 6, 6]) == 8


# Waiting for a block that another computes


def _with_owner(depth: int = 1, **settings: object) -> tuple[Harness, Request, Request]:
    """Two prompts that share 62 tokens, 15 blocks of 4 and two tokens of the next: the last chunk of the first is in
    flight, the second waits for it."""
    harness = _small(**{"max_num_batched_tokens": 24, "depth": depth} | settings)
    harness.add([600, 601], 40)
    owner = harness.add([*range(62), 900, 901, 902], 4)
    waiter = harness.add([*range(62), 800, 801, 802], 4)
    while waiter not in harness.scheduler.prefix_waits:
        assert harness.step()
    assert owner.num_in_flight
    return harness, owner, waiter


def _go_on(harness: Harness, waiter: Request) -> None:
    harness.run()
    assert waiter.status is Status.LENGTH
    harness.check_answer(waiter)


def test_a_block_is_waited_for_that_shares_more_than_what_is_cached() -> None:
    """One token of the second block is cached, from another prompt; three are being computed."""
    harness = _small()
    _ask(harness, [0, 1, 2, 3, 4, 99, 98])
    harness.add([0, 1, 2, 3, 4, 5, 6, 97, *range(200, 220)], 2)
    waiter = harness.add([0, 1, 2, 3, 4, 5, 6, 77, 76, 75], 2)
    other = harness.add([0, 1, 2, 3, 4, 50, 51], 2)
    harness.step()
    assert waiter in harness.scheduler.prefix_waits
    assert other not in harness.scheduler.prefix_waits, "it would gain nothing"
    harness.run()
    _check(harness)
    assert (waiter.num_cached_tokens, other.num_cached_tokens) == (7, 5)


def test_a_token_or_two_at_the_very_beginning_are_not_worth_a_wait() -> None:
    harness = _large()
    harness.add([0, 1, *range(100, 200)], 2)
    hasty = harness.add([0, 1, 7, 8, 9], 2)
    patient = harness.add([0, 1, 100, 101, 7, 8, 9], 2)
    harness.step()
    assert hasty not in harness.scheduler.prefix_waits
    assert patient in harness.scheduler.prefix_waits
    harness.run()
    _check(harness)
    assert patient.num_cached_tokens == 4


@DEPTHS
def test_a_waiter_goes_on_when_the_block_has_landed(depth: int) -> None:
    harness, _, waiter = _with_owner(depth)
    _go_on(harness, waiter)
    assert waiter.num_cached_tokens == 62
    _check(harness)


@DEPTHS
@pytest.mark.parametrize("lands_first", [False, True])
def test_a_waiter_goes_on_when_the_owner_is_aborted(depth: int, lands_first: bool) -> None:
    """With what has landed by then: full blocks, or all once the step in flight has."""
    harness, owner, waiter = _with_owner(depth, max_num_seqs=3)
    num_landed = owner.num_landed_tokens
    harness.scheduler.abort(owner)
    assert waiter not in harness.scheduler.prefix_waits
    while lands_first and harness.pending:
        harness.land()
    _go_on(harness, waiter)
    assert 0 < num_landed < 62
    assert waiter.num_cached_tokens == (62 if lands_first or depth == 1 else num_landed // 4 * 4)


@DEPTHS
def test_a_waiter_goes_on_when_the_owner_fails(depth: int) -> None:
    harness, owner, waiter = _with_owner(depth)

    def fails(plan: StepPlan) -> None:
        if owner.row_id in plan.row_ids:
            raise RuntimeError("injected")

    harness.runner.fails = fails
    _go_on(harness, waiter)
    assert owner.status is Status.FAILED


@DEPTHS
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_waiter_goes_on_when_the_owner_is_preempted(depth: int, mode: str) -> None:
    """After a failed step, so that the owner can be preempted before its last chunk has landed."""
    harness, owner, waiter = _with_owner(depth, num_host_blocks=64, preemption_mode=mode)
    failed = _fail_once(harness, lambda plan: True)
    while not failed:
        assert harness.step()
    assert waiter in harness.scheduler.prefix_waits
    assert owner.num_landed_tokens < 65
    harness.scheduler.population.preempt(owner)
    harness.check()
    assert waiter not in harness.scheduler.prefix_waits
    harness.run()
    _check(harness)


def test_a_wait_for_tokens_of_a_block_is_bounded() -> None:
    """The prompts share a part of their first block alone. The step that computes it takes its time; the next one is
    planned meanwhile."""
    harness = _small(depth=2, block_size=SIZE, max_prefix_wait_steps=1)
    harness.add([600, 601], 40)
    harness.step(), harness.land()
    harness.add([*range(14), 900], 2)
    waiter = harness.add([*range(14), 800], 2)
    harness.plan()
    assert waiter in harness.scheduler.prefix_waits
    harness.plan()
    assert waiter.status is Status.RUNNING
    assert waiter.num_cached_tokens == 0
    harness.run()
    _check(harness)


# Salts


@GROUPS
def test_salts_isolate_inside_blocks(num_groups: int) -> None:
    harness = _small(num_groups=num_groups)
    prompt = list(range(22))
    found = [_ask(harness, [*prompt, 900 + i], salt=salt) for i, salt in enumerate(["a", "a", "b", None, None, "b"])]
    assert found == [0, 22, 0, 0, 22, 22]


@pytest.mark.parametrize("salts", [("a", "b"), ("a", None), (None, "a")])
def test_nobody_waits_for_a_foreign_salt(salts: tuple[str | None, str | None]) -> None:
    harness = _small(max_num_batched_tokens=8)
    harness.add([*range(30), 900], 2, salt=salts[0])
    other = harness.add([*range(30), 800], 2, salt=salts[1])
    harness.step()
    assert other not in harness.scheduler.prefix_waits
    harness.run()
    _check(harness)
    assert other.num_cached_tokens == 0


@GROUPS
@pytest.mark.parametrize("num_open", [0, 1, 3, 4, 5, 8, 10, 11, 12, 20])
def test_open_tokens_are_shared_by_all_and_the_rest_within_the_salt(num_open: int, num_groups: int) -> None:
    """In both directions, and at any count, of which few are full blocks of 4."""
    prompt = list(range(22))
    for first, second in (("a", "b"), ("a", None), (None, "a")):
        harness = _small(num_groups=num_groups)
        kwargs = [{"salt": salt, "num_open": num_open if salt else 0} for salt in (first, second)]
        assert _ask(harness, [*prompt, 900], **kwargs[0]) == 0
        assert _ask(harness, [*prompt, 901], **kwargs[1]) == num_open
        assert [_ask(harness, [*prompt, 902], **kwarg) for kwarg in kwargs] == [22, 22]


@GROUPS
@pytest.mark.parametrize("counts", [(4, 6), (6, 4), (4, 6, 5), (5, 7)])
def test_one_salt_opens_more_or_less_of_a_block_that_is_there(counts: tuple[int, ...], num_groups: int) -> None:
    """What has been opened stays so, and the sanitizer knows it, whoever of the salt has computed the block."""
    harness, prompt = _small(num_groups=num_groups), list(range(22))
    for num_open in counts:  # prompt logprobs: computed again, so published again
        assert _ask(harness, [*prompt, 900], salt="a", num_open=num_open, prompt_logprobs=0) == 0
    assert _ask(harness, [*prompt, 901]) == max(counts)
    assert _ask(harness, [*prompt, 902], salt="a", num_open=counts[0]) == 22


@DEPTHS
@pytest.mark.parametrize("num_open", [3, 4, 10, 16])
def test_open_tokens_at_once(depth: int, num_open: int) -> None:
    harness = _small(max_num_batched_tokens=8, depth=depth)
    requests = [
        harness.add([*range(22), 900 + i], 3, salt=salt, num_open=num_open) for i, salt in enumerate(["a", "b", "a"])
    ]
    harness.run()
    _check(harness)
    first, foreign, own = [request.num_cached_tokens for request in requests]
    assert first == 0
    assert foreign is not None
    assert foreign <= num_open
    assert own == 22


def test_open_tokens_end_before_a_foreign_text_begins() -> None:
    """The private ends are the same token by token: they are not found, however far the open part goes."""
    harness = _small()
    private = [*range(10), 70, 71, 72, 73, 74, 75]
    assert _ask(harness, private, salt="a", num_open=10) == 0
    assert _ask(harness, private, salt="b", num_open=10) == 10
    assert _ask(harness, private, salt="c", num_open=14) == 10
    assert _ask(harness, private) == 14, "what c has opened, and no more"


# What becomes of tails


@GROUPS
@DEPTHS
def test_a_tail_is_copied_whose_owner_goes_on_writing(depth: int, num_groups: int) -> None:
    """The prompt's tail has a name when it has landed; its owner fills the block while others copy from it."""
    harness = _small(num_groups=num_groups, depth=depth, num_blocks=256)
    owner = harness.add([*range(10), 900], 12)
    while owner.num_output_tokens < 2:
        harness.step()
    followers = [harness.add([*range(10), 800 + i], 6) for i in range(5)]
    for _ in range(3):
        harness.step()
    assert owner.status is Status.RUNNING
    harness.run()
    _check(harness)
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
    harness = _small()
    twins = [harness.add([1, 2, 3, 4, 5, 6], 4), harness.add([1, 2, 3, 4, 5, 6], 4, prompt_logprobs=0)]
    harness.step()
    harness.step()
    assert [twin.num_output_tokens for twin in twins] == [1, 1]
    assert harness.kv.pool.num_named == 2
    harness.run()
    _check(harness)


def test_a_tail_that_was_evicted_is_not_found() -> None:
    harness = _small(num_blocks=8)
    assert _ask(harness, [*range(10), 90]) == 0
    _ask(harness, list(range(500, 525)))  # 7 of 8 blocks: the tail goes first, then its parents
    assert _ask(harness, [*range(10), 80]) <= 4
    assert harness.kv.pool.num_named <= 8


@pytest.mark.parametrize("num_blocks", [9, 10])
def test_the_tail_is_evicted_before_its_parent(num_blocks: int) -> None:
    """It is a leaf: of 9 blocks with 3 in the cache, 7 are taken; of 10, with one more to spare, the tail as well."""
    harness = _small(num_blocks=num_blocks)
    _ask(harness, [*range(10), 90])
    _ask(harness, list(range(500, 528)))
    assert _ask(harness, [*range(10), 80]) == 8 if num_blocks == 9 else 10


def test_what_a_tail_is_copied_from_stays_until_the_step_has_landed() -> None:
    harness = _small(num_blocks=8, depth=2)
    _ask(harness, [*range(10), 90])
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
    harness = _small(num_blocks=8, num_host_blocks=16, keep_evicted=True)
    _ask(harness, [*range(10), 90])
    _ask(harness, list(range(500, 531)))
    harness.kv.land(1 << 60)
    names = {name for name in harness.kv.host.pool.names if name is not None}
    chain = harness.kv.hasher.chain(None)
    harness.kv.hasher.extend(chain, list(range(8)), 8)
    assert set(chain.hashes) <= names
    assert harness.kv.host.num_cached == 2
    assert _ask(harness, [*range(10), 80]) == 8


@DEPTHS
def test_reset_prefix_cache_forgets_tails(depth: int) -> None:
    harness = _small(depth=depth)
    running = harness.add([*range(10), 90], 20)
    for _ in range(8):
        harness.step()
    assert running.status is Status.RUNNING
    harness.scheduler.reset_prefix_cache()
    harness.check()
    assert harness.kv.pool.num_named == 0
    harness.run()
    assert harness.kv.pool.num_named == 0, "what is older than the reset is not published after it"
    assert _ask(harness, [*range(10), 80]) == 0
    assert _ask(harness, [*range(10), 70]) == 10


@GROUPS
@DEPTHS
def test_a_failed_step_with_the_copy_of_a_tail(depth: int, num_groups: int) -> None:
    """Its request is tried again, from the same tail: the copy is made again."""
    harness = _small(depth=depth, num_groups=num_groups)
    _ask(harness, [*range(10), 90])
    others = [harness.add([700 + i, 701], 12) for i in range(2)]
    harness.step(), harness.step()
    failed = _fail_once(harness, lambda plan: bool(plan.copies))
    followers = [harness.add([*range(10), 80 + i], 6) for i in range(3)]
    harness.run()
    assert len(failed) == 1
    assert len(failed[0].copies) == 3 * num_groups
    _check(harness)
    assert [request.num_cached_tokens for request in followers] == [10] * 3
    assert all(request.num_output_tokens == 12 for request in others)
    assert harness.kv.held_blocks == []


@DEPTHS
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_request_that_is_preempted_after_its_copy_has_failed(depth: int, mode: str) -> None:
    """What was to be copied is not there: it is neither published nor swapped out."""
    harness = _small(depth=depth, num_host_blocks=64, preemption_mode=mode)
    _ask(harness, [*range(10), 90])
    failed = _fail_once(harness, lambda plan: bool(plan.copies))
    followers = [harness.add([*range(10), 80 + i], 6) for i in range(2)]
    while not failed:
        assert harness.step()
    harness.scheduler.population.preempt(followers[1])
    harness.check()
    harness.run()
    _check(harness)
    assert harness.kv.held_blocks == []


@DEPTHS
def test_a_request_that_is_aborted_after_its_copy_has_failed(depth: int) -> None:
    harness = _small(depth=depth)
    _ask(harness, [*range(10), 90])
    failed = _fail_once(harness, lambda plan: bool(plan.copies))
    followers = [harness.add([*range(10), 80 + i], 6) for i in range(2)]
    while not failed:
        assert harness.step()
    for follower in followers:
        harness.scheduler.abort(follower)
        harness.check()
    assert _ask(harness, [*range(10), 70]) == 10
    assert harness.kv.held_blocks == []
