"""Costs that are fitted to measured steps."""

import random
from dataclasses import replace

import pytest

from octavo.core.errors import ConfigurationError
from octavo.sim.costs import LinearCosts, StepWork
from octavo.sim.fit import TERMS, Cell, errors, fit, fit_and_check, least_squares

KNOWN = LinearCosts(
    base=2.5e-3,
    per_decode=6e-4,
    per_decode_context=1.5e-6,
    per_chunk=2e-4,
    per_chunk_token=5e-4,
    per_chunk_context=4e-7,
    per_chunk_pair=5e-7,
)


def works(count: int, source: random.Random) -> list[StepWork]:
    """Of answers, of prompts, and of both."""
    found = []
    for number in range(count):
        rows, chunks = source.randint(1, 64) * (number % 3 != 0), source.randint(1, 4) * (number % 3 != 1)
        tokens, start = source.randint(1, 512) * chunks, source.randint(0, 2000)
        context = (start + tokens) * chunks
        decode_context = rows * source.randint(1, 1500)
        found.append(StepWork(rows, decode_context, chunks, tokens, context, tokens * (start + tokens // 2)))
    return found


def cells(costs: LinearCosts, source: random.Random, noise: float = 0.0, count: int = 90) -> list[Cell]:
    return [Cell(work, costs.step_seconds(work) * (1 + source.uniform(-noise, noise))) for work in works(count, source)]


def test_known_costs_are_found_again() -> None:
    found = fit(cells(KNOWN, random.Random(0)))
    for name in TERMS:
        assert getattr(found, name) == pytest.approx(getattr(KNOWN, name), rel=1e-5), name


@pytest.mark.parametrize("name", TERMS)
def test_what_costs_nothing_is_found_to_cost_nothing(name: str) -> None:
    """Noise would have it below 0 as often as above: it is 0 then, and never below."""
    costs = replace(KNOWN, **{name: 0.0})
    for seed in range(10):
        found = fit(cells(costs, random.Random(seed), 0.05))
        assert all(getattr(found, each) >= 0 for each in TERMS)
    assert getattr(fit(cells(costs, random.Random(0))), name) == pytest.approx(0.0, abs=1e-8)


def test_steps_that_were_held_up_count_little() -> None:
    source = random.Random(1)
    measured = [
        Cell(cell.work, cell.seconds * (3 if number % 8 == 0 else 1))
        for number, cell in enumerate(cells(KNOWN, source, 0.01))
    ]
    others = cells(KNOWN, source)
    assert errors(fit(measured), others).p90 < 0.02


def test_errors_are_relative_to_what_was_measured() -> None:
    costs = LinearCosts(1.0, 0.0, 0.0)
    measured = [Cell(StepWork(num_decodes=1), seconds) for seconds in (1.0, 0.5, 2.0, 1.25, 0.8)]
    found = errors(costs, measured)  # 0, 1, 0.5, 0.2, 0.25
    assert found.median == pytest.approx(0.25)
    assert found.p90 == pytest.approx(1.0)
    assert errors(KNOWN, cells(KNOWN, random.Random(0))).p90 == pytest.approx(0.0)
    slow = [Cell(cell.work, 1.25 * cell.seconds) for cell in cells(KNOWN, random.Random(0))]
    assert errors(KNOWN, slow) == pytest.approx((0.2, 0.2))


def test_what_steps_do_not_tell_is_nothing() -> None:
    """All steps have two rows: what a row costs cannot be told from what a step does. Their sum is right."""
    found = fit([Cell(StepWork(2, 200), 0.01), Cell(StepWork(2, 200), 0.01)])
    assert found.step_seconds(StepWork(2, 200)) == pytest.approx(0.01)
    with pytest.raises(ConfigurationError, match="tell no cost"):
        fit([])


def test_least_squares_of_a_system_with_one_solution() -> None:
    assert least_squares([[1.0, 1.0], [1.0, 3.0]], [1.0, 5.0]) == pytest.approx([1.0, 0.0])
    assert least_squares([[2.0, 0.0], [0.0, 4.0], [2.0, 4.0]], [1.0, 1.0, 0.0]) == pytest.approx([0.5, 0.25])


def test_errors_on_what_is_held_out_are_those_of_a_fit_without_it() -> None:
    """Every fourth step, which is what is held out, takes twice as long as the others would have it."""
    source = random.Random(2)
    measured = [
        Cell(cell.work, cell.seconds * (2 if number % 4 == 1 else 1))
        for number, cell in enumerate(cells(KNOWN, source))
    ]
    found = fit_and_check(measured)
    assert (found.num_own, found.num_held_out) == (90, 23)
    assert found.held_out == pytest.approx((0.5, 0.5), abs=1e-3)
    assert found.own.median < 0.01
    with pytest.raises(ConfigurationError, match="3 kinds of steps"):
        fit_and_check(measured[:3])


def test_a_cell_of_many_steps_is_worth_more() -> None:
    work = StepWork(1, 10)
    few, many = Cell(work, 0.02, 4), Cell(work, 0.01, 400)
    assert fit([few, many]).step_seconds(work) == pytest.approx(0.01, rel=0.02)
