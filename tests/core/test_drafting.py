"""Drafts from a sequence's own text, and what a row costs."""

from itertools import islice
from random import Random

import pytest

from octavo.core.drafting import FIRST_CHANCES, MOST_INDEXED, NgramDrafter
from octavo.core.step_costs import LEAST_VARIANCE, MOST_BASE_ROWS, TYPICAL_BASE_ROWS, StepCosts


def drafted(token_ids: list[int], most: int, drafter: NgramDrafter | None = None) -> list[int]:
    drafter = drafter or NgramDrafter()
    drafter.follow(token_ids)
    return [token_id for token_id, _ in islice(drafter.propose(token_ids), most)]


def test_what_followed_the_same_tokens_before() -> None:
    assert drafted([1, 2, 3, 4, 5, 6, 9, 2, 3], 3) == [4, 5, 6]


def test_three_tokens_say_more_than_two() -> None:
    assert drafted([1, 2, 3, 4, 0, 7, 2, 3, 5, 0, 1, 2, 3], 1) == [4]


def test_the_latest_occurrence_counts() -> None:
    assert drafted([1, 2, 3, 1, 2, 4, 1, 2], 1) == [4]


@pytest.mark.parametrize("token_ids", [[], [1], [1, 2], [1, 1], [1, 2, 3, 4, 5]])
def test_nothing_to_go_by(token_ids: list[int]) -> None:
    assert drafted(token_ids, 5) == []


def test_a_copy_may_reach_into_itself() -> None:
    assert drafted([5, 6, 7, 5, 6], 8) == [7, 5, 6, 7, 5, 6, 7, 5]
    assert drafted([1, 1, 1], 4) == [1, 1, 1, 1]


def test_it_stays_with_the_place_that_it_copies_from() -> None:
    """2 3 has stood later before something else, but the text before it is that of the first place."""
    text, drafter = [1, 2, 3, 4, 8, 8, 2, 3, 5, 8, 1], NgramDrafter()
    for token_id in (2, 3):
        text.append(token_id)
        drafter.follow(text)
    assert drafted(text, 1, drafter) == [4]


@pytest.mark.parametrize(
    ("edited", "expected"),
    [
        ([0, 1, 2, 3, 4, 5, 99, 7], 8),  # one token is another one
        ([0, 1, 2, 3, 4, 5, 7], 8),  # one is left out
        ([0, 1, 2, 3, 4, 5, 98, 99, 6], 7),  # two are put in
        ([0, 1, 2, 3, 4, 5, 98, 99, 9], 10),  # two for three
    ],
)
def test_after_an_edit_one_token_is_enough_to_go_on(edited: list[int], expected: int) -> None:
    text, drafter = [*range(20), 50], NgramDrafter()
    for token_id in (50, *edited):
        text.append(token_id)
        drafter.follow(text)
    assert drafted(text, 2, drafter) == [expected, expected + 1]


def test_a_text_that_was_left_long_ago_is_not_gone_back_to() -> None:
    text, drafter = [*range(20), 50], NgramDrafter()
    for token_id in (0, 1, 2, 3, 4, 5, 70, 71, 72, 73, 74, 75, 76, 77, 6):
        text.append(token_id)
        drafter.follow(text)
    assert drafted(text, 1, drafter) == []


def test_token_by_token_is_as_all_at_once() -> None:
    rng = Random(0)
    for _ in range(200):
        text = [rng.randrange(4) for _ in range(rng.randint(1, 60))]
        slow = NgramDrafter()
        for end in range(1, len(text) + 1):
            slow.follow(text[:end])
        assert slow._after == index_of(text)
        source = slow._source
        assert drafted(text, 1, slow) == ([] if source is None else [text[source]])
        if len(text) > 1 and text[-2:] in [text[start : start + 2] for start in range(len(text) - 2)]:
            assert source is not None


def index_of(text: list[int]) -> dict[tuple[int, ...], int]:
    """The specification of the index."""
    spans = [(start, length) for length in (2, 3) for start in range(len(text) - length + 1)]
    return {tuple(text[start : start + length]): start + length for start, length in spans}


def test_an_index_at_once_is_the_same() -> None:
    text = [1, 2, 1, 2, 3, 1, 2, 3, 3, 3]
    drafter = NgramDrafter()
    drafter.follow(text)
    assert drafter._after == index_of(text)


def test_of_a_long_prompt_only_the_last_tokens_are_indexed() -> None:
    """One of any length costs a step a few milliseconds, and a bounded memory."""
    drafter, tail = NgramDrafter(), list(range(100, 110))
    token_ids = [1, 2, 3, 4, *tail, *([7] * MOST_INDEXED), 1, 2, 3]
    drafter.follow(token_ids)
    assert not list(islice(drafter.propose(token_ids), 1))
    assert len(drafter._after) < 2 * MOST_INDEXED
    near = [1, 2, 3, 4, *tail, *([7] * (MOST_INDEXED - 100)), 1, 2, 3]
    drafter = NgramDrafter()
    drafter.follow(near)
    assert [token_id for token_id, _ in islice(drafter.propose(near), 2)] == [4, 100]


def test_chances_multiply_and_grow_with_what_was_right() -> None:
    text = list(range(40))
    drafter = NgramDrafter()
    drafter.follow([*text, 0, 1, 2])
    assert [chance for _, chance in islice(drafter.propose([*text, 0, 1, 2]), 2)] == pytest.approx(
        [FIRST_CHANCES[1], FIRST_CHANCES[1] * FIRST_CHANCES[2]]
    )
    for end in range(3, 30):
        drafter.follow(text + text[:end])
    assert next(drafter.propose(text + text[:29]))[1] > FIRST_CHANCES[-1]


def test_it_learns_that_a_text_only_seems_to_repeat() -> None:
    rng, text, drafter = Random(1), list[int](), NgramDrafter()
    for _ in range(3000):
        text.append(rng.randrange(8))
        drafter.follow(text)
    chances = [chance for _, chance in islice(drafter.propose(text), 1)]
    assert drafter._chances[0] == pytest.approx(1 / 8, abs=0.2)
    assert not chances or chances[0] < 0.6


# What a row costs


def test_costs_are_fitted() -> None:
    costs, rng = StepCosts(), Random(0)
    for _ in range(200):
        rows = rng.choice([1, 1, 5, 9, 16])
        costs.note(rows, (3.0 + 1.2 * rows) * rng.uniform(0.95, 1.05) / 1000)
    assert costs.base_rows == pytest.approx(2.5, abs=0.5)


def test_steps_that_are_all_alike_say_nothing() -> None:
    costs = StepCosts()
    assert costs.base_rows == TYPICAL_BASE_ROWS
    for seconds in (0.5, *[0.004] * 50):
        costs.note(1, seconds)
    assert costs.base_rows == TYPICAL_BASE_ROWS


@pytest.mark.parametrize("base", [0.1, 0.3, 1.0, 4.0])
def test_steps_of_one_row_and_two_are_enough_where_times_follow_them(base: float) -> None:
    """What one stream comes to where a draft is one token: drafts must not cost for good what they do not bring."""
    costs, rng = StepCosts(), Random(1)
    for _ in range(400):
        rows = rng.choice([1, 1, 1, 2])
        costs.note(rows, (base + rows) * rng.uniform(0.95, 1.05) / 1000)
    assert costs.base_rows == pytest.approx(base, abs=0.2 + base / 4)


def test_noise_is_no_measurement() -> None:
    costs, rng = StepCosts(), Random(1)
    for _ in range(400):
        costs.note(rng.choice([1, 2]), 0.004 * rng.uniform(0.5, 2.0))
    assert costs.base_rows == TYPICAL_BASE_ROWS


def test_rows_that_cost_nothing_and_rows_that_cost_all() -> None:
    free, dear, large = StepCosts(), StepCosts(), StepCosts()
    for _ in range(20):
        for rows in (1, 9):
            free.note(rows, 0.004)
            dear.note(rows, 0.001 * rows)
            large.note(1000 * rows, 1.0)
    assert free.base_rows == MOST_BASE_ROWS
    assert dear.base_rows < 0.5
    assert large._variance < LEAST_VARIANCE


def test_a_step_that_was_held_up_is_no_dear_one() -> None:
    """The machine did something else for a second, while a step of many rows was on its way, or one of few."""
    for held_up in (1, 16):
        costs = StepCosts()
        for rows in [1, 1, 16, 1, 5, 9] * 6:
            costs.note(rows, 0.003 + 0.0012 * rows)
        before = costs.base_rows
        assert before == pytest.approx(2.5, abs=0.2)
        costs.note(held_up, 1.0)
        assert costs.base_rows == pytest.approx(before, rel=0.5)


def test_a_row_is_added_while_it_brings_more_than_the_others() -> None:
    gain = StepCosts().gain(1)
    assert [gain.add(0.9) for _ in range(3)] == [True, True, True]
    assert not gain.add(0.3)
    assert gain.num_tokens == pytest.approx(3.7)
    assert gain.cost == pytest.approx(TYPICAL_BASE_ROWS + 4)


def test_with_many_rows_hardly_anything_pays() -> None:
    assert not StepCosts().gain(256).pays(0.98)
    assert StepCosts().gain(1).pays(0.35)
