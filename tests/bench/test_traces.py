"""Lengths of real requests."""

from importlib.resources import files

import pytest

from octavo.bench.traces import Lengths, azure_lengths, azure_trace, draw_lengths

FIRST_DRAWN = [(1176, 116), (181, 156), (981, 400)]


@pytest.mark.parametrize(
    ("name", "count", "seconds", "first"),
    [
        ("azure", 19_366, 3501.72, [Lengths(374, 44), Lengths(396, 109)]),
        ("azure-code", 8_819, 3435.95, [Lengths(4808, 10), Lengths(3180, 8)]),
    ],
)
def test_the_traces_are_whole(name: str, count: int, seconds: float, first: list[Lengths]) -> None:
    trace = azure_trace(name)
    assert len(trace) == count
    assert [request.lengths for request in trace] == azure_lengths(name)
    assert azure_lengths(name)[:2] == first
    assert all(min(request.lengths) > 0 for request in trace)
    arrivals = [request.seconds for request in trace]
    assert arrivals == sorted(arrivals)
    assert (arrivals[0], arrivals[-1]) == (0.0, pytest.approx(seconds, abs=0.01))


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
