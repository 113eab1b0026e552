"""Sharing by token, not by page: hits that end inside a block."""

import pytest

from tests.core.sharing import (
    DEPTHS,
    GROUPS,
    SYSTEM,
    ask,
    check,
    large,
    num_prompt_tokens_computed,
    question,
    small,
)


@DEPTHS
@GROUPS
def test_a_system_prompt_is_computed_once_one_question_after_another(depth: int, num_groups: int) -> None:
    harness = large(depth, num_groups, max_num_seqs=4)
    for number in range(8):
        assert ask(harness, SYSTEM + question(number)) == (341 if number else 0)
    assert num_prompt_tokens_computed(harness) == 341 + 8 * 7
    assert harness.scheduler.counters.prefix_hits == 7 * 341
    assert harness.scheduler.counters.prefix_queries == 8 * 348
    assert harness.kv.num_copies == 0, "what a hit copies is no copy-on-write"


@DEPTHS
@pytest.mark.parametrize("length", [1, 7, 11, 12, 40])
def test_a_system_prompt_is_computed_once_by_32_questions_at_once(depth: int, length: int) -> None:
    """Also with questions that end inside the block of the system prompt's end, just at its end (341 + 11) or after."""
    harness = large(depth)
    for number in range(32):
        harness.add(SYSTEM + question(number, length), 4)
    harness.run()
    check(harness)
    assert [request.num_cached_tokens for request in harness.requests] == [0] + [341] * 31
    assert num_prompt_tokens_computed(harness) == 341 + 32 * length
    assert harness.scheduler.counters.prefix_hits == 31 * 341


@DEPTHS
@pytest.mark.parametrize("budget", [8, 64, 2048])
def test_questions_of_different_lengths_at_once(depth: int, budget: int) -> None:
    """The first is shorter than what is left of the block, others reach over many; few have a row at a time."""
    harness = large(depth, max_num_batched_tokens=budget, max_num_seqs=6)
    lengths = [1, 5, 30, 2, 11, 12, 100, 16, 3] * 2
    for number, length in enumerate(lengths):
        harness.add(SYSTEM + question(number, length), 6)
    harness.run()
    check(harness)
    assert num_prompt_tokens_computed(harness) == 341 + sum(lengths)


@DEPTHS
@GROUPS
@pytest.mark.parametrize("at_once", [False, True])
def test_prompts_shorter_than_a_block(depth: int, num_groups: int, at_once: bool) -> None:
    """9 tokens of a system prompt, in blocks of 16."""
    harness = large(depth, num_groups)
    for number in range(8):
        harness.add([*range(9), *question(number, 1 + number % 5)], 3)
        if not at_once:
            harness.run()
    harness.run()
    check(harness)
    assert [request.num_cached_tokens for request in harness.requests] == [0] + [9] * 7
    assert num_prompt_tokens_computed(harness) == 9 + sum(1 + number % 5 for number in range(8))


def test_a_system_prompt_whose_end_is_the_end_of_a_block() -> None:
    harness = large()
    for number in range(8):
        harness.add([*range(336), *question(number)], 3)
    harness.run()
    check(harness)
    assert num_prompt_tokens_computed(harness) == 336 + 8 * 7


@DEPTHS
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 32, 341])
def test_of_a_prompt_that_is_cached_as_a_whole_one_token_is_computed(depth: int, length: int) -> None:
    harness = large(depth)
    for turn in range(3):
        before = sum(plan.num_tokens for plan in harness.runner.plans)
        assert ask(harness, SYSTEM[:length]) == (length - 1 if turn else 0)
        assert sum(plan.num_tokens for plan in harness.runner.plans) - before == (1 if turn else length)


def test_a_conversation_goes_on_where_its_last_turn_ended() -> None:
    """The answer is published too, its last block as far as it is filled; its last token was never computed."""
    harness = large()
    prompt = [1, 2, 3]
    for turn in range(5):
        request = harness.add(prompt, 9)
        harness.run()
        assert request.num_cached_tokens == (0 if turn == 0 else len(prompt) - 4 - 1)
        prompt = [*request.token_ids, 7, 8, 9, 10]


def test_the_longest_of_many_tails_is_taken() -> None:
    harness = small(block_size=8)
    for end in ([1, 2, 9], [1, 2, 3, 4, 9], [1, 2, 3, 9], [5, 6]):
        ask(harness, [*range(100, 108), *end])
    assert ask(harness, [*range(100, 108), 1, 2, 3, 4, 5, 6, 7, 8]) == 8 + 4
    assert ask(harness, [*range(100, 108), 5, 5]) == 8 + 1
    assert ask(harness, [*range(100, 108), 6, 6]) == 8
