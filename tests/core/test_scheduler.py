"""The scheduler with a fake runner and exact ids."""

import pytest

from octavo.core.errors import ConfigurationError, InvalidRequestError
from octavo.core.prefix_wait import PrefixWaits
from octavo.core.request import Request, Status
from octavo.core.scheduler_types import PromptBounds, SchedulerConfig
from octavo.core.step import StepPlan
from tests.support.fake_runner import expected_output
from tests.support.scheduling import Harness

DEPTHS = pytest.mark.parametrize("depth", [1, 2])


def output(request: Request) -> list[int]:
    return request.token_ids[request.num_prompt_tokens :]


@DEPTHS
def test_a_request_alone(depth: int) -> None:
    harness = Harness(depth=depth)
    request = harness.add([1, 2, 3, 4, 5], 10)
    harness.run()
    assert output(request) == expected_output([1, 2, 3, 4, 5], 10)
    assert request.status is Status.LENGTH


def test_first_plan_is_exact() -> None:
    harness = Harness(max_num_batched_tokens=8)
    harness.add([1, 2, 3, 4, 5], 3)
    harness.add([6, 7, 8, 9, 10], 3)
    plan = harness.scheduler.schedule()
    assert plan is not None
    assert (plan.row_ids, plan.starts, plan.counts, plan.samples) == ((0, 1), (0, 0), (5, 3), (True, False))
    assert [row.block_ids for row in plan.new_rows] == [((0, 1),), ((2,),)]
    assert plan.num_tokens == 8


def test_decodes_come_before_chunks() -> None:
    harness = Harness(max_num_batched_tokens=8, num_blocks=64)
    harness.add([1, 2, 3], 20)
    harness.step(), harness.step()
    harness.add(list(range(100, 130)), 2)
    plan = harness.scheduler.schedule()
    assert plan is not None
    assert (plan.starts, plan.counts) == ((3, 0), (1, 7))


@DEPTHS
def test_stop_id_ends_a_request_and_drops_the_token_in_flight(depth: int) -> None:
    harness = Harness(depth=depth)
    stop = expected_output([1, 2, 3], 5)[-1]
    request = harness.add([1, 2, 3], 50, stop_ids=[stop])
    harness.run()
    assert output(request) == expected_output([1, 2, 3], 50, frozenset([stop]))
    assert (request.status, request.stop_reason) == (Status.STOPPED, stop)
    assert harness.scheduler.counters.generation_tokens == len(output(request))


@DEPTHS
@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("num_groups", [1, 3])
def test_b01_preempted_requests_lose_and_repeat_nothing(depth: int, prefix_caching: bool, num_groups: int) -> None:
    harness = Harness(
        num_blocks=24 * num_groups, num_groups=num_groups, max_num_seqs=4, depth=depth, prefix_caching=prefix_caching
    )
    prompts = [list(range(100 * i, 100 * i + n)) for i, n in enumerate([10, 11, 13, 14])]
    requests = [harness.add(prompt, 40) for prompt in prompts]
    harness.run()
    assert harness.scheduler.counters.num_preemptions >= 1
    for request, prompt in zip(requests, prompts, strict=True):
        assert output(request) == expected_output(prompt, 40)
        assert request.status is Status.LENGTH
    assert requests[0].num_preemptions == 0, "the oldest is never preempted"


def test_b03_what_can_never_run_is_refused_with_the_numbers() -> None:
    harness = Harness(num_blocks=16)
    for prompt, max_tokens in ((80, 1), (50, 100)):
        with pytest.raises(InvalidRequestError, match=f"64 tokens.*{prompt + max_tokens}"):
            harness.add([1] * prompt, max_tokens)
    with pytest.raises(InvalidRequestError, match="empty"):
        harness.add([], 1)
    request = harness.add([1] * 24, 40)
    harness.run()
    assert len(output(request)) == 40, "a request as large as the pool runs alone"


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15, 16, 17])
def test_b06_whole_prompt_cached(length: int) -> None:
    harness = Harness(num_blocks=64)
    prompt = list(range(length))
    for turn in range(3):
        request = harness.add(prompt, 10)
        harness.run()
        assert output(request) == expected_output(prompt, 10)
        assert request.num_cached_tokens == (0 if turn == 0 else length - 1)
    twins = [harness.add(prompt, 10), harness.add(prompt, 10)]
    harness.run()
    assert [output(twin) for twin in twins] == [expected_output(prompt, 10)] * 2


def test_requests_that_share_an_uncached_prompt_compute_it_once() -> None:
    harness = Harness(num_blocks=128, max_num_batched_tokens=16, max_num_seqs=16)
    shared = list(range(50))
    requests = [harness.add([*shared, 900 + i], 2) for i in range(8)]
    harness.run()
    assert [request.num_cached_tokens for request in requests] == [0] + [50] * 7
    assert sum(plan.num_tokens for plan in harness.runner.plans) == 51 + 7 * 1 + 8
    for i, request in enumerate(requests):
        assert output(request) == expected_output([*shared, 900 + i], 2)


def test_those_who_wait_for_a_prefix_do_not_hold_up_others() -> None:
    harness = Harness(num_blocks=128, max_num_batched_tokens=16)
    harness.add(list(range(40)), 2)
    waiter = harness.add(list(range(40)), 2)
    other = harness.add([500, 501], 1)
    for _ in range(3):
        harness.plan()
        harness.land() if len(harness.runner.plans) < 3 else None
    assert waiter in harness.scheduler.prefix_waits
    assert other.status is Status.RUNNING
    harness.run()
    assert output(waiter) == expected_output(list(range(40)), 2)
    assert waiter.num_cached_tokens == 39


@pytest.mark.parametrize("depth", [1, 2])
def test_who_gets_on_may_wait_on(depth: int) -> None:
    """A prompt of many more steps than anybody waits for a block is computed once, though another has it too."""
    bounds = PromptBounds(max_long=2, long_threshold=10)  # so that there would be room for both
    harness = Harness(num_blocks=128, max_num_batched_tokens=8, depth=depth, max_prefix_wait_steps=5, prompts=bounds)
    prompt = list(range(100))
    first, second = harness.add(prompt, 2), harness.add(prompt, 2)
    harness.run()
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 99)


def test_waiting_for_a_prefix_is_bounded() -> None:
    harness, woken = Harness(), list[Request]()
    owner, waiter = harness.add([1] * 8, 1), harness.add([1] * 8, 1)
    waits = PrefixWaits(3, woken.append)
    owner.chain.append(b"hash")
    waits.claim(owner, 0)
    assert waits.is_awaited([b"hash"])
    assert waits.may_wait(waiter, step_id=5)
    waits.park(waiter, b"hash", step_id=5)
    waits.expire(7)
    assert woken == []
    waits.expire(8)
    assert woken == [waiter]
    assert waiter not in waits
    assert not waits.may_wait(waiter, step_id=8), "a wait is not taken up again"


@pytest.mark.parametrize("lands", [True, False])
def test_a_second_wait_is_a_new_one_if_the_first_has_brought_something(lands: bool) -> None:
    """The first waiter wakes and waits again, behind the second, whose bound lies later; or, where nothing has landed,
    before it."""
    harness, woken = Harness(), list[Request]()
    waits = PrefixWaits(3, woken.append)
    owner, first, second = (harness.add([1] * 8, 1) for _ in range(3))
    owner.chain.append(b"hash")
    waits.claim(owner, 0)
    waits.park(first, b"hash", step_id=5)
    waits.park(second, b"other", step_id=6)
    if lands:
        waits.settle([b"hash"])
    else:
        waits.abandon(owner, 0)
    assert woken == [first]
    waits.park(first, b"next", step_id=7)
    waits.expire(8)
    assert woken == ([first] if lands else [first, first])
    waits.expire(9)
    assert woken == ([first, second] if lands else [first, first, second])
    waits.expire(10)
    assert sorted(map(id, woken)) == sorted(map(id, [first, first, second]))


def test_who_waits_no_more_at_its_bound_is_not_woken() -> None:
    harness, woken = Harness(), list[Request]()
    waits = PrefixWaits(3, woken.append)
    waiter = harness.add([1] * 8, 1)
    waits.park(waiter, b"hash", step_id=5)
    waits.remove(waiter)
    waits.expire(8)
    assert woken == []


@pytest.mark.parametrize("ends", ["aborted", "itself"])
@DEPTHS
def test_after_a_reset_nothing_is_cached_that_follows_what_was_forgotten(ends: str, depth: int) -> None:
    """A request that has ended, while a step computes it, left what it had computed in the cache when that landed."""
    harness = Harness(depth=depth)
    request = harness.add(list(range(9)), 30 if ends == "aborted" else 8)
    while request.num_output_tokens < 6:
        harness.step()
    while not harness.pending:
        harness.plan()
    if ends == "aborted":
        harness.scheduler.abort(request)
    harness.scheduler.reset_prefix_cache()
    harness.run()
    assert request.is_finished
    assert harness.kv.pool.num_named == 0


def test_nobody_waits_when_nothing_runs() -> None:
    """Should what is awaited never come, nor a step that counts towards the bound, the waiter runs by itself."""
    harness = Harness()
    waiter = harness.add(list(range(8)), 2)
    harness.scheduler.waiting.remove(waiter)
    harness.scheduler.prefix_waits.park(waiter, b"of nobody", step_id=0)
    harness.run()
    assert output(waiter) == expected_output(list(range(8)), 2)


@pytest.mark.parametrize("how", ["ends", "aborted"])
@pytest.mark.parametrize("more", range(1, 12))
def test_who_waits_is_not_lost_when_another_brings_the_block(how: str, more: int) -> None:
    """A sequence ends, or is aborted, and leaves a block in the cache that a second one is computing and a third one
    waits for: a prompt that continues the first one's answer while it is still being written, sent twice. The third
    stood in no queue any more."""
    harness = Harness(num_blocks=64, max_num_batched_tokens=64)
    prompt = [1, 2, 3, 4]
    answer = expected_output(prompt, 60)
    first = harness.add(prompt, 22 + more if how == "ends" else 60)
    while first.num_output_tokens < 22:
        harness.step()
    twins = [harness.add(prompt + answer[:20] + [7] * 30, 2) for _ in range(2)]
    if how == "aborted":
        while twins[1] not in harness.scheduler.prefix_waits:
            assert harness.step()
        harness.scheduler.abort(first)
        harness.check()
    harness.run()
    for request in harness.requests:
        harness.check_answer(request)
    assert all(twin.status is Status.LENGTH for twin in twins)


@pytest.mark.parametrize("cancel_after", range(1, 9))
@pytest.mark.parametrize("depth", [1, 2])
def test_b08_a_cancelled_prefill_poisons_nothing(cancel_after: int, depth: int) -> None:
    harness = Harness(num_blocks=64, max_num_batched_tokens=8, depth=depth)
    prompt = list(range(60))
    first = harness.add(prompt, 10)
    for _ in range(cancel_after * 2):
        harness.step()
    harness.scheduler.abort(first)
    harness.check()
    assert 0 < cancel_after * 8 < 70
    twin = harness.add(prompt, 10)
    harness.run()
    assert output(twin) == expected_output(prompt, 10)
    assert first.status is Status.ABORTED


def test_b11_salts_do_not_share() -> None:
    harness = Harness(num_blocks=64, max_num_batched_tokens=128)
    cached = []
    for salt in ("a", "a", "b", None, None, "a"):
        request = harness.add(list(range(64)), 2, salt=salt)
        harness.run()
        cached.append(request.num_cached_tokens)
        assert output(request) == expected_output(list(range(64)), 2)
    assert cached == [0, 63, 0, 0, 63, 63]


def test_prompt_logprobs_read_no_cache_but_write_it() -> None:
    harness = Harness(num_blocks=64, max_num_batched_tokens=64)
    cached = []
    for wanted in (None, 3, 3, None):
        request = harness.add(list(range(41)), 1, prompt_logprobs=wanted)
        harness.run()
        cached.append(request.num_cached_tokens)
    assert cached == [0, 0, 0, 40]
    assert harness.scheduler.counters.prefix_queries == 82
    assert harness.scheduler.counters.prefix_hits == 40


@DEPTHS
def test_abort_in_every_state(depth: int) -> None:
    harness = Harness(depth=depth, max_num_seqs=2)
    requests = [harness.add([i, i + 1, i + 2], 30) for i in range(4)]
    harness.step()
    for request in requests:
        harness.scheduler.abort(request)
        harness.scheduler.abort(request)
        harness.check()
    harness.run()
    assert all(request.status is Status.ABORTED for request in requests)


@DEPTHS
def test_a_failing_request_fails_alone(depth: int) -> None:
    harness = Harness(num_blocks=64, depth=depth)
    requests = [harness.add([i * 10, i * 10 + 1, i * 10 + 2], 12) for i in range(5)]
    culprit = requests[2]

    def fails(plan: StepPlan) -> None:
        if culprit.row_id in plan.row_ids and culprit.num_output_tokens > 3:
            raise RuntimeError("injected")

    harness.runner.fails = fails
    harness.run()
    assert culprit.status is Status.FAILED
    for request in requests:
        if request is not culprit:
            assert output(request) == expected_output(request.token_ids[:3], 12)
            assert request.status is Status.LENGTH


def test_a_fault_that_passes_costs_nobody_an_answer() -> None:
    harness = Harness(num_blocks=64)
    requests = [harness.add([i * 10, i * 10 + 1, i * 10 + 2], 12) for i in range(5)]
    faults = iter([True])

    def fails(plan: StepPlan) -> None:
        if len(plan.row_ids) > 3 and next(faults, False):
            raise RuntimeError("injected once")

    harness.runner.fails = fails
    harness.run()
    for request in requests:
        assert output(request) == expected_output(request.token_ids[:3], 12)


def test_a_failed_step_gives_back_what_was_held_for_it() -> None:
    """Two requests compute the same block; the second gives its own back, held for the step in flight, which fails."""
    harness = Harness(num_blocks=4, depth=2)
    twins = [harness.add([1, 2, 3, 4, 5], 4), harness.add([1, 2, 3, 4, 5], 4, prompt_logprobs=0)]
    harness.plan(), harness.plan()
    harness.land()
    assert harness.kv.held_blocks

    def fails(plan: StepPlan) -> None:
        raise RuntimeError("injected")

    harness.runner.fails = fails
    harness.land()
    harness.runner.fails = lambda plan: None
    for twin in twins:
        harness.scheduler.abort(twin)
    as_large_as_the_pool = harness.add(list(range(14)), 2)
    harness.run()
    assert as_large_as_the_pool.status is Status.LENGTH


def test_nothing_is_said_of_a_row_that_is_given_up() -> None:
    """A request that ends publishes the rest of its blocks, some of which others hold already; its row is gone."""
    harness = Harness(num_blocks=7, block_size=2, depth=2, max_num_seqs=2, max_num_batched_tokens=8)
    prompt = [1, 2, 3, 4, 5, 0]
    stop_ids = list(range(0, 890, 7))
    harness.add_choices(prompt, 2, 1, stop_ids=stop_ids)
    harness.add_choices([*prompt, 1, 1], 3, 3, stop_ids=stop_ids, prompt_logprobs=0)
    harness.run()
    for request in harness.requests:
        harness.check_answer(request)


def test_reset_prefix_cache_while_running() -> None:
    harness = Harness(num_blocks=64)
    first = harness.add(list(range(20)), 30)
    for _ in range(10):
        harness.step()
    harness.scheduler.reset_prefix_cache()
    harness.check()
    harness.run()
    again = harness.add(list(range(20)), 3)
    harness.run()
    assert again.num_cached_tokens == 0
    assert output(first) == expected_output(list(range(20)), 30)


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"16.*32"):
        SchedulerConfig(max_num_seqs=32, max_num_batched_tokens=16)


@DEPTHS
def test_a_row_without_a_token_to_draw_fails_alone_and_at_once(depth: int) -> None:
    """No step is rolled back for it: the others' plans stay as they were."""
    harness = Harness(num_blocks=64, depth=depth)
    requests = [harness.add([i * 10, i * 10 + 1, i * 10 + 2], 12) for i in range(4)]
    stuck = requests[1]
    harness.runner.faults = lambda row_id: row_id == stuck.row_id and stuck.num_output_tokens >= 2
    harness.run()
    assert stuck.status is Status.FAILED
    assert output(stuck) == expected_output(stuck.token_ids[:3], 2)
    for request in requests:
        if request is not stuck:
            assert output(request) == expected_output(request.token_ids[:3], 12)
    assert all(len(plan.row_ids) != 1 for plan in harness.runner.plans[:8]), "nobody was tried alone"
