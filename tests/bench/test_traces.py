"""Lengths of real requests."""

from importlib.resources import files

import pytest

from octavo.bench.traces import Lengths, azure_conversation, draw_lengths

FIRST_DRAWN = [(1176, 116), (181, 156), (981, 400)]


def test_the_trace_is_whole() -> None:
    trace = azure_conversation()
    assert len(trace) == 19_366
    assert trace[:2] == [Lengths(374, 44), Lengths(396, 109)]
    assert all(request.prompt > 0 and request.output > 0 for request in trace)


def test_its_licence_stands_beside_it() -> None:
    licence = (files("octavo") / "data" / "azure" / "LICENSE").read_text(encoding="utf-8-sig")
    assert licence.startswith("Attribution 4.0 International")


def test_a_seed_draws_the_same_requests() -> None:
    assert draw_lengths(50, seed=1) == draw_lengths(50, seed=1) != draw_lengths(50, seed=2)
    assert draw_lengths(3, seed=0) == [Lengths(*pair) for pair in FIRST_DRAWN]


@pytest.mark.parametrize("divisor", [8, 10**6])
def test_divided_lengths_are_at_least_one(divisor: int) -> None:
    whole = draw_lengths(100, seed=3)
    for (prompt, output), divided in zip(whole, draw_lengths(100, seed=3, divisor=divisor), strict=True):
        assert divided == (max(1, prompt // divisor), max(1, output // divisor))
