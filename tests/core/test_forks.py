"""The choices of one request: they fork the blocks of its prompt, copy what they write, and go their own ways."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.request import Request, Status
from octavo.core.step import StepPlan
from tests.support.fake_runner import expected_output
from tests.support.scheduling import Harness

DEPTHS = pytest.mark.parametrize("depth", [1, 2])


def output(request: Request) -> list[int]:
    return request.token_ids[request.num_prompt_tokens :]


def check_choices(choices: list[Request], prompt: list[int], max_tokens: int) -> None:
    """Each choice is what it is alone, and they differ."""
    for index, choice in enumerate(choices):
        assert output(choice) == expected_output(prompt, max_tokens, choice=index)
        assert choice.status is Status.LENGTH
    assert len({tuple(output(choice)) for choice in choices}) == len(choices)


@DEPTHS
@pytest.mark.parametrize("num_groups", [1, 2])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 12, 13, 40, 42])
@pytest.mark.parametrize("n", [2, 3, 8])
def test_one_prefill_and_one_copy_a_child(n: int, length: int, num_groups: int, depth: int) -> None:
    """Where nothing else interferes: the prompt is computed once, its blocks are shared; where it ends inside a block,
    each choice but the last copies that block, and the last owner writes into it as it is."""
    harness = Harness(num_blocks=64 * num_groups, num_groups=num_groups, max_num_batched_tokens=16, depth=depth)
    prompt = list(range(length))
    choices = harness.add_choices(prompt, n, 6)
    logical = physical = 0
    while harness.step():
        tables = [table for choice in choices if choice.tables for table in choice.tables.groups]
        logical = max(logical, sum(map(len, tables)))
        if len(tables) == n * num_groups:
            assert len({block for table in tables for block in table[: length // 4]}) == length // 4 * num_groups
            physical = max(physical, len({block for table in tables for block in table}))
    harness.run()
    check_choices(choices, prompt, 6)
    plans = harness.runner.plans
    assert sum(plan.num_tokens for plan in plans) == length + n * (6 - 1)
    assert sum(len(plan.forks) for plan in plans) == n - 1
    assert harness.kv.num_copies == sum(len(plan.copies) for plan in plans)
    assert harness.kv.num_copies == (n - 1 if length % 4 else 0) * num_groups
    assert physical == logical - (n - 1) * (length // 4) * num_groups
    assert harness.scheduler.counters.prompt_tokens == length
    assert harness.scheduler.counters.generation_tokens == 6 * n
    assert harness.scheduler.counters.prefix_queries == length


@DEPTHS
def test_b06_choices_of_a_prompt_in_the_cache(depth: int) -> None:
    for length in (1, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15, 16, 17):
        harness = Harness(num_blocks=64, depth=depth)
        prompt = list(range(length))
        for turn in range(3):
            choices = harness.add_choices(prompt, 2, 10)
            harness.run()
            check_choices(choices, prompt, 10)
            cached = 0 if turn == 0 else length - 1  # shared by token (D29)
            assert [choice.num_cached_tokens for choice in choices] == [cached, cached]
        twins = [harness.add_choices(prompt, 2, 10) for _ in range(2)]
        harness.run()
        for choices in twins:
            check_choices(choices, prompt, 10)


@DEPTHS
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_b05_choices_beyond_the_pool(depth: int, prefix_caching: bool) -> None:
    """Two requests of three choices need 34 blocks and have 20; six choices need 32 blocks and have 16."""
    harness = Harness(num_blocks=20, depth=depth, prefix_caching=prefix_caching)
    prompts = [list(range(8)), list(range(100, 108))]
    requests = [harness.add_choices(prompt, 3, 20) for prompt in prompts]
    harness.run()
    for choices, prompt in zip(requests, prompts, strict=True):
        check_choices(choices, prompt, 20)
    assert harness.scheduler.counters.num_preemptions > 0
    small = Harness(num_blocks=16, depth=depth, prefix_caching=prefix_caching)
    choices = small.add_choices(prompts[0], 6, 20)
    small.run()
    check_choices(choices, prompts[0], 20)


@DEPTHS
@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("num_blocks", [5, 6, 7, 9, 12, 18])
def test_more_choices_than_blocks_run_in_turns(num_blocks: int, prefix_caching: bool, depth: int) -> None:
    """Down to a pool that holds one choice at a time (spec D3)."""
    harness = Harness(num_blocks=num_blocks, depth=depth, prefix_caching=prefix_caching)
    prompt = list(range(10))
    choices = harness.add_choices(prompt, 7, 10)
    harness.run()
    check_choices(choices, prompt, 10)
    assert choices[0].num_preemptions == 0, "the oldest is never preempted"


@DEPTHS
@pytest.mark.parametrize("max_num_seqs", [1, 2, 3])
def test_more_choices_than_rows_run_in_turns(max_num_seqs: int, depth: int) -> None:
    harness = Harness(num_blocks=64, max_num_seqs=max_num_seqs, depth=depth)
    prompt = list(range(9))
    choices = harness.add_choices(prompt, 8, 5)
    running = 0
    while harness.step():
        running = max(running, len(harness.scheduler.running))
    harness.run()
    check_choices(choices, prompt, 5)
    assert running == max_num_seqs
    assert sum(len(plan.forks) for plan in harness.runner.plans) == max_num_seqs - 1
    assert harness.scheduler.counters.prefix_queries == 9, "its other choices do not count again"


def test_others_in_line_do_not_wait_for_choices_without_a_row() -> None:
    """Choices keep their place in line: a later request comes after them, and does come."""
    harness = Harness(num_blocks=64, max_num_seqs=2)
    choices = harness.add_choices(list(range(9)), 4, 5)
    later = harness.add([500, 501], 3)
    harness.run()
    check_choices(choices, list(range(9)), 5)
    assert output(later) == expected_output([500, 501], 3)
    assert [choice.order for choice in choices] == sorted(choice.order for choice in choices)
    assert later.order > choices[-1].order


@DEPTHS
@pytest.mark.parametrize("when", range(12))
def test_the_parent_is_aborted_before_or_after_the_fork(when: int, depth: int) -> None:
    """Its prompt takes five steps. Whoever waited for it computes the rest of it."""
    harness = Harness(num_blocks=64, max_num_batched_tokens=8, depth=depth)
    prompt = list(range(37))
    parent, *children = harness.add_choices(prompt, 4, 6)
    for _ in range(when):
        harness.step()
    is_before_fork = parent in harness.scheduler.population.families._children
    harness.scheduler.abort(parent)
    harness.check()
    assert not harness.scheduler.population.families
    harness.run()
    assert parent.status is Status.ABORTED
    for index, child in enumerate(children, 1):
        assert output(child) == expected_output(prompt, 6, choice=index)
    assert is_before_fork == (sum(len(plan.forks) for plan in harness.runner.plans) == 0)


@DEPTHS
@pytest.mark.parametrize("which", [1, 2, 3])
@pytest.mark.parametrize("when", [0, 3, 8, 10, 12])
def test_a_child_is_aborted_before_or_after_the_fork(when: int, which: int, depth: int) -> None:
    harness = Harness(num_blocks=64, max_num_batched_tokens=8, depth=depth)
    prompt = list(range(37))
    choices = harness.add_choices(prompt, 4, 6)
    for _ in range(when):
        harness.step()
    harness.scheduler.abort(choices[which])
    harness.check()
    harness.run()
    for index, choice in enumerate(choices):
        if index == which:
            assert choice.status is Status.ABORTED
        else:
            assert output(choice) == expected_output(prompt, 6, choice=index)


@DEPTHS
def test_a_parent_that_fails_leaves_its_prompt_to_its_choices(depth: int) -> None:
    harness = Harness(num_blocks=64, max_num_batched_tokens=8, depth=depth)
    prompt = list(range(37))
    parent, *children = harness.add_choices(prompt, 3, 6)

    def fails(plan: StepPlan) -> None:
        starts = dict(zip(plan.row_ids, plan.starts, strict=True))
        if starts.get(parent.row_id, 0) >= 16:
            raise RuntimeError("this request always fails here")

    harness.runner.fails = fails
    harness.run()
    assert parent.status is Status.FAILED
    for index, child in enumerate(children, 1):
        assert output(child) == expected_output(prompt, 6, choice=index)


@DEPTHS
def test_a_parent_that_is_preempted_computes_its_prompt_again_and_is_forked(depth: int) -> None:
    """An older request takes its blocks before its prompt is through."""
    num_preempted_in_prompt = 0
    prompt, older_prompt = list(range(32)), list(range(200, 221))
    for num_tokens_before in range(1, 20):
        harness = Harness(num_blocks=16, max_num_batched_tokens=8, depth=depth, prefix_caching=False)
        older = harness.add(older_prompt, 30)
        while older.num_output_tokens < num_tokens_before:
            harness.step()
        choices = harness.add_choices(prompt, 3, 2)
        while choices[1] in harness.scheduler.population.families:
            harness.step()
        num_preempted_in_prompt += choices[0].num_preemptions
        harness.run()
        check_choices(choices, prompt, 2)
        assert output(older) == expected_output(older_prompt, 30)
    assert num_preempted_in_prompt >= 2


@DEPTHS
@pytest.mark.parametrize("length", [8, 11])
@pytest.mark.parametrize("failing", range(6))
def test_a_step_fails_that_carries_forks_or_copies(failing: int, length: int, depth: int) -> None:
    """A fault that passes, in any of the first steps, costs nobody an answer."""
    harness = Harness(num_blocks=64, depth=depth)
    prompt = list(range(length))
    choices = harness.add_choices(prompt, 4, 8)
    beside = harness.add([700, 701, 702], 8)
    failed: list[StepPlan] = []

    def fails(plan: StepPlan) -> None:
        if plan.step_id == failing and not failed:
            failed.append(plan)
            raise RuntimeError("a fault that passes")

    harness.runner.fails = fails
    harness.run()
    assert failed
    if failing == 0:
        assert failed[0].forks
    if failing == 1 and length % 4:
        assert failed[0].copies
    check_choices(choices, prompt, 8)
    assert output(beside) == expected_output([700, 701, 702], 8)


@DEPTHS
def test_what_a_failed_copy_holds_comes_back_with_its_choices(depth: int) -> None:
    """The copy is to be made again by the next plan, but those who wanted it are aborted before that."""
    harness = Harness(num_blocks=8, depth=depth)
    choices = harness.add_choices(list(range(6)), 2, 4)

    def fails(plan: StepPlan) -> None:
        if plan.copies:
            raise RuntimeError("injected")

    harness.runner.fails = fails
    while not harness.scheduler.population.copies:
        harness.step()
    harness.runner.fails = lambda plan: None
    assert harness.kv.held_blocks
    for choice in choices:
        harness.scheduler.abort(choice)
    assert not harness.kv.held_blocks
    as_large_as_the_pool = harness.add(list(range(100, 128)), 4)
    harness.run()
    assert as_large_as_the_pool.status is Status.LENGTH


@DEPTHS
def test_a_choice_that_always_fails_fails_alone(depth: int) -> None:
    harness = Harness(num_blocks=64, depth=depth)
    prompt = list(range(11))
    choices = harness.add_choices(prompt, 4, 8)
    culprit = choices[2]

    def fails(plan: StepPlan) -> None:
        if culprit.row_id in plan.row_ids:
            raise RuntimeError("this choice always fails")

    harness.runner.fails = fails
    harness.run()
    assert culprit.status is Status.FAILED
    for index in (0, 1, 3):
        assert output(choices[index]) == expected_output(prompt, 8, choice=index)


@DEPTHS
def test_a_choice_without_a_token_to_draw_fails_alone(depth: int) -> None:
    """In the very step that forks it, and later."""
    for when in (0, 3):
        harness = Harness(num_blocks=64, depth=depth)
        choices = harness.add_choices(list(range(11)), 4, 8)

        def faults(row_id: int, stuck: Request = choices[2], when: int = when) -> bool:
            return row_id == stuck.row_id and stuck.num_output_tokens >= when

        harness.runner.faults = faults
        harness.run()
        assert choices[2].status is Status.FAILED
        assert output(choices[2]) == expected_output(list(range(11)), when, choice=2)
        for index in (0, 1, 3):
            assert output(choices[index]) == expected_output(list(range(11)), 8, choice=index)


@DEPTHS
def test_choices_end_at_their_own_stop_ids(depth: int) -> None:
    prompt = list(range(11))
    stop = frozenset(range(0, 1000, 11))
    harness = Harness(num_blocks=64, depth=depth)
    choices = harness.add_choices(prompt, 8, 30, stop_ids=sorted(stop))
    harness.run()
    for index, choice in enumerate(choices):
        assert output(choice) == expected_output(prompt, 30, stop, index)
    assert len({len(output(choice)) for choice in choices}) > 3


@DEPTHS
def test_a_first_token_that_ends_the_parent_ends_no_other_choice(depth: int) -> None:
    prompt = list(range(11))
    stop = expected_output(prompt, 1)
    harness = Harness(num_blocks=64, depth=depth)
    choices = harness.add_choices(prompt, 4, 5, stop_ids=stop)
    harness.run()
    for index, choice in enumerate(choices):
        assert output(choice) == expected_output(prompt, 5, frozenset(stop), index)
    assert len(output(choices[0])) == 1


@DEPTHS
def test_one_token_a_choice(depth: int) -> None:
    harness = Harness(num_blocks=16, depth=depth)
    choices = harness.add_choices(list(range(11)), 6, 1)
    harness.run()
    check_choices(choices, list(range(11)), 1)
    assert len(harness.runner.plans) == 1
    assert harness.kv.num_copies == 0, "nobody writes after the prompt"


@DEPTHS
def test_greedy_choices_are_equal(depth: int) -> None:
    harness = Harness(num_blocks=64, depth=depth)
    choices = harness.add_choices(list(range(11)), 4, 6, temperature=0.0)
    harness.run()
    assert [output(choice) for choice in choices] == [expected_output(list(range(11)), 6)] * 4


@DEPTHS
def test_prompt_logprobs_are_the_parents_alone(depth: int) -> None:
    """The parent computes its whole prompt though it is cached; its choices fork what it computed."""
    harness = Harness(num_blocks=64, max_num_batched_tokens=16, depth=depth)
    prompt = list(range(40))
    for turn in range(2):
        first_plan = len(harness.runner.plans)
        choices = harness.add_choices(prompt, 3, 5, prompt_logprobs=2)
        harness.run()
        check_choices(choices, prompt, 5)
        assert [choice.params.prompt_logprobs for choice in choices] == [2, None, None]
        plans = harness.runner.plans[first_plan:]
        assert sum(plan.num_tokens for plan in plans) == 40 + 3 * 4, turn
        assert sum(len(plan.forks) for plan in plans) == 2
    assert harness.scheduler.counters.prefix_queries == 0


@DEPTHS
@pytest.mark.parametrize("ends", [None, 0, 1])
def test_choices_that_compute_again_what_is_cached_take_the_cached_blocks(ends: int | None, depth: int) -> None:
    """All of them do, not only the one that computes: a named block of the others would outlive what it follows.
    ``ends``: the choice that is aborted while the others go on."""
    harness = Harness(num_blocks=12, block_size=2, max_num_seqs=2, max_num_batched_tokens=6, depth=depth)
    harness.add([1, 2, 3, 4, 5, 1], 1)
    harness.run()
    prompt = [1, 2, 3, 4, 5, 0, 0, 0, 0]
    choices = harness.add_choices(prompt, 2, 7, prompt_logprobs=0)
    while any(choice.num_output_tokens < 2 for choice in choices):
        harness.step()
        harness.check_leaves_go_first()
    tables = [choice.tables.groups[0][:4] for choice in choices if choice.tables]
    assert tables[0] == tables[1]
    assert harness.kv.pool.num_named >= 5
    if ends is not None:
        harness.scheduler.abort(choices[ends])
    while harness.step():
        harness.check_leaves_go_first()
    harness.run()
    for choice in choices:
        harness.check_answer(choice)


@DEPTHS
def test_choices_keep_the_salt_of_their_request(depth: int) -> None:
    """Also those that get in line, and those that were preempted (B11)."""
    harness = Harness(num_blocks=9, max_num_seqs=3, depth=depth)
    prompt = list(range(17))
    choices = harness.add_choices(prompt, 5, 16, salt="a")
    harness.run()
    check_choices(choices, prompt, 16)
    assert harness.scheduler.counters.num_preemptions > 0
    for salt in ("a", "b", None):
        again = harness.add(prompt, 1, salt=salt)
        harness.run()
        assert bool(again.num_cached_tokens) == (salt == "a")


@DEPTHS
def test_outputs_of_choices_are_published_and_hit(depth: int) -> None:
    """What one choice has written behind the prompt can be hit by the next turn of its conversation, and no other's."""
    harness = Harness(num_blocks=64, depth=depth)
    prompt = list(range(10))
    choices = harness.add_choices(prompt, 3, 15)
    harness.run()
    for choice in choices:
        again = harness.add([*choice.token_ids, 1], 1)
        harness.run()
        assert again.num_cached_tokens == 24
        assert output(again) == expected_output([*choice.token_ids, 1], 1)


@DEPTHS
def test_the_prefix_cache_is_reset_while_choices_share(depth: int) -> None:
    for when in range(1, 10, 2):
        harness = Harness(num_blocks=64, max_num_batched_tokens=8, depth=depth)
        prompt = list(range(22))
        choices = harness.add_choices(prompt, 4, 8)
        for _ in range(when):
            harness.step()
        harness.scheduler.reset_prefix_cache()
        harness.check()
        harness.run()
        check_choices(choices, prompt, 8)


def test_choices_hold_fewer_blocks_than_requests_of_their_own() -> None:
    """Sharing saves what the prompt takes, for every choice but one."""

    def most_blocks(n: int, num_requests: int) -> int:
        harness = Harness(num_blocks=200, max_num_batched_tokens=200, prefix_caching=False)
        for _ in range(num_requests):
            harness.add_choices(list(range(64)), n, 16)
        used = [0]
        while harness.step():
            used.append(200 - harness.kv.pool.num_free)
        return max(used)

    assert most_blocks(1, 4) - most_blocks(4, 1) == 3 * 16


def test_choices_too_long_for_the_pool_are_refused() -> None:
    harness = Harness(num_blocks=8)
    with pytest.raises(InvalidRequestError, match=r"32 tokens.*33"):
        harness.add_choices([1] * 20, 3, 13)
    assert not harness.scheduler.has_work
    choices = harness.add_choices([1] * 20, 3, 12)
    harness.run()
    check_choices(choices, [1] * 20, 12)


def test_rows_are_planned_in_the_order_of_their_ids() -> None:
    """The first plan with forks, exactly."""
    harness = Harness(num_blocks=16)
    harness.add_choices([1, 2, 3, 4, 5], 3, 4)
    first, second = harness.scheduler.schedule(), None
    assert first is not None
    assert (first.row_ids, first.starts, first.counts, first.samples) == ((0, 1, 2), (0, 5, 5), (5, 0, 0), (True,) * 3)
    assert first.forks == ((1, 0), (2, 0))
    assert [row.block_ids for row in first.new_rows] == [((0, 1),)] * 3
    assert not first.copies
    harness.pending.append(harness.sanitizer.submit(first))
    harness.land()
    second = harness.scheduler.schedule()
    assert second is not None
    assert (second.row_ids, second.starts, second.counts) == ((0, 1, 2), (5, 5, 5), (1, 1, 1))
    assert second.copies == ((1, 2), (1, 3))
    assert all(earlier < later for earlier, later in pairwise(second.row_ids))


@DEPTHS
def test_a_fork_that_is_aborted_before_its_step_fails_names_nothing(depth: int) -> None:
    """It counts the prompt as its own, but the step that was to compute it failed: the prefix cache learns nothing."""
    harness = Harness(block_size=2, depth=depth)
    parent, child, _ = harness.add_choices([0], 3, 2)
    assert harness.plan()
    harness.scheduler.abort(child)
    harness.scheduler.abort(parent)
    harness.runner.fails = _once()
    harness.land()
    assert harness.kv.pool.num_named == 0
    harness.run()


def _once() -> Callable[[StepPlan], None]:
    failures = iter([RuntimeError("injected")])

    def fails(_plan: StepPlan) -> None:
        for failure in failures:
            raise failure

    return fails
