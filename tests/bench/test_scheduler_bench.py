"""Steps a second of the scheduler alone: what the figures say of each other, never a time."""

import pytest

from octavo.bench.scheduler import measure


def test_figures_agree() -> None:
    figures = measure(num_running=16, num_steps=60)
    assert (figures.num_running, figures.num_steps) == (16, 60)
    assert figures.steps_per_second * figures.microseconds_per_step == pytest.approx(1e6)
    assert figures.tokens_per_second == pytest.approx(figures.mean_rows * figures.steps_per_second)
    assert 0.9 * 16 <= figures.mean_rows <= 16
    assert figures.steps_per_cpu_second > 0
