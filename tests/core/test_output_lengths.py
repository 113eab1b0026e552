"""What is learned of lengths: chances against plain counting."""

import math
import random

import pytest

from octavo.core.output_lengths import HORIZONS, MAX_TENANTS, MEMORY, OutputLengths, SurvivalCurve


def chances(curve: SurvivalCurve, num_tokens: int) -> list[float]:
    return [math.exp(-hazard) for hazard in curve.row(num_tokens)]


def counted(lengths: list[int], num_tokens: int) -> list[float]:
    """Of those that got so far, the share that goes on past each horizon."""
    there = [length for length in lengths if length >= num_tokens]
    return [sum(length >= num_tokens + ahead for length in there) / len(there) for ahead in HORIZONS]


@pytest.fixture(scope="module")
def lengths() -> list[int]:
    source = random.Random(0)
    return [int(source.lognormvariate(5, 0.8)) + 1 for _ in range(1000)]


@pytest.mark.parametrize("num_tokens", [0, 32, 128, 256])
def test_the_chances_are_those_that_were_seen(lengths: list[int], num_tokens: int) -> None:
    seen = OutputLengths()
    for length in lengths:
        seen.note(length, is_end=True, tenant="")
    assert chances(seen.curve([], ""), num_tokens) == pytest.approx(counted(lengths, num_tokens), abs=0.06)


def test_answers_that_were_cut_off_do_not_make_others_shorter(lengths: list[int]) -> None:
    """Half of them are cut off at random: what is learned is the same."""
    source, seen = random.Random(1), OutputLengths()
    for length in lengths:
        limit = int(source.lognormvariate(5, 0.8)) + 1
        seen.note(min(length, limit), is_end=length <= limit, tenant="")
    assert chances(seen.curve([], ""), 0) == pytest.approx(counted(lengths, 0), abs=0.12)


def test_what_is_under_way_counts_as_well() -> None:
    """Short answers end first; those that go on meanwhile say that not all are short."""
    seen = OutputLengths()
    for _ in range(20):
        seen.note(10, is_end=True, tenant="")
    other = OutputLengths()
    for _ in range(20):
        other.note(10, is_end=True, tenant="")
    place = HORIZONS.index(64)
    assert chances(other.curve([("", 100)] * 60, ""), 0)[place] > 0.7
    assert chances(seen.curve([], ""), 0)[place] < 0.35


def test_before_anything_is_known_lengths_are_spread() -> None:
    going_on = chances(OutputLengths().curve([], ""), 0)
    assert going_on[0] == 1.0
    assert going_on == sorted(going_on, reverse=True)
    assert 0.1 < going_on[-1] < 0.5


def test_old_answers_fade() -> None:
    seen = OutputLengths()
    for _ in range(4 * MEMORY):
        seen.note(1000, is_end=True, tenant="")
    for _ in range(8 * MEMORY):
        seen.note(20, is_end=True, tenant="")
    assert chances(seen.curve([], ""), 0)[HORIZONS.index(32)] < 0.05


def test_a_tenant_is_known_by_its_own_once_there_are_enough() -> None:
    seen = OutputLengths()
    for _ in range(200):
        seen.note(500, is_end=True, tenant="long")
    for _ in range(10):
        seen.note(10, is_end=True, tenant="short")
    place = HORIZONS.index(256)
    assert chances(seen.curve([], "short"), 0)[place] > 0.8, "as all"
    for _ in range(100):
        seen.note(10, is_end=True, tenant="short")
    assert chances(seen.curve([], "short"), 0)[place] < 0.1
    assert chances(seen.curve([], "long"), 0)[place] > 0.9
    for number in range(MAX_TENANTS):
        seen.note(500, is_end=True, tenant=str(number))
    assert chances(seen.curve([], "short"), 0)[place] > 0.4, "forgotten: as all again"


@pytest.mark.parametrize("num_tokens", [0, 1, 15, 16, 10**6, 10**7])
def test_any_length_has_a_place(num_tokens: int) -> None:
    seen = OutputLengths()
    seen.note(num_tokens, is_end=True, tenant="")
    row = seen.curve([("", num_tokens)], "").row(num_tokens)
    assert all(0 <= hazard < math.inf for hazard in row)
