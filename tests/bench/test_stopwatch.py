"""Timing methods from outside."""

import time

import pytest

from octavo.bench.stopwatch import Stopwatch


class Worker:
    def work(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def fail(self) -> None:
        raise ValueError("no")


def test_counts_inside_the_block_only() -> None:
    before, watch, worker = Worker.work, Stopwatch(), Worker()
    with watch.watch([("work", Worker, "work"), ("fail", Worker, "fail")]):
        assert worker.work(0.01) + worker.work(0.01) == 0.02
        with pytest.raises(ValueError, match="no"):
            worker.fail()
    counted = watch.seconds["work"]
    worker.work(0.01)
    assert watch.seconds["work"] == counted >= 0.02
    assert 0 < watch.seconds["fail"] < counted
    assert Worker.work is before
