"""Parts of a step, timed by a clock that moves when it is told to."""

import pytest

from octavo.bench.latency import StepTime, breakdown
from octavo.bench.stopwatch import Stopwatch
from octavo.core.timing import untimed


class Work:
    """A clock, and parts that let time pass on it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.watch = Stopwatch(lambda: self.now)
        self.inner = self.watch("inner", self._inner)
        self.outer = self.watch("outer", self._outer)
        self.fail = self.watch("failing", self._fail)

    def _inner(self, seconds: float) -> float:
        self.now += seconds
        return seconds

    def _outer(self) -> None:
        self.now += 1.0
        self.inner(2.0)
        self.now += 4.0
        self.inner(8.0)

    def _fail(self) -> None:
        self.now += 16.0
        raise ValueError("no")


def test_a_moment_counts_for_the_innermost_part_only() -> None:
    work = Work()
    work.outer()
    work.now += 32.0
    assert work.inner(0.5) == 0.5
    assert work.watch.take() == {"outer": 5.0, "inner": 10.5}
    assert work.watch.take() == {}


def test_a_part_that_fails_has_ended() -> None:
    work = Work()
    with pytest.raises(ValueError, match="no"):
        work.fail()
    work.now += 1.0
    work.outer()
    assert work.watch.take() == {"failing": 16.0, "outer": 5.0, "inner": 10.0}


def test_an_engine_that_nobody_measures_calls_the_functions_themselves() -> None:
    work = Work()
    assert untimed("inner", work.inner) is work.inner


def test_a_breakdown_is_the_median_of_each_part() -> None:
    steps = [
        StepTime(1.0, {"plan": 0.25, "native": 0.5}),
        StepTime(4.0, {"plan": 1.0, "native": 2.0}),
        StepTime(2.0, {"plan": 0.5, "native": 1.0, "sample": 0.5}),
    ]
    assert breakdown(steps) == {
        "plan_milliseconds": 500.0,
        "inputs_milliseconds": 0.0,
        "native_milliseconds": 1000.0,
        "sample_milliseconds": 0.0,
        "detokenize_milliseconds": 0.0,
        "rest_milliseconds": 250.0,
        "python_milliseconds": 1000.0,
    }
