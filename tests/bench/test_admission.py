"""The comparison of quantiles: what must hold of its figures."""

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from octavo.bench.admission import Load, StepTime, admission_command, run
from octavo.bench.traces import azure_trace


@pytest.fixture(scope="module")
def load() -> Load:
    return Load(azure_trace("azure")[:300], 1500, 4096, StepTime(240.0, 10_000.0), seed=0)


@pytest.mark.slow
def test_who_looks_ahead_preempts_less_and_still_fills_memory(load: Load) -> None:
    blind, ahead = run(load, 0.0, 2.0), run(load, 0.99, 2.0)
    assert 0 < blind.num_preempted <= blind.num_preemptions
    assert ahead.num_preempted < blind.num_preempted / 2
    for found in (blind, ahead):
        assert len(found.ends) == len(found.ttft) == len(load.trace)
        assert 0.9 < found.filled_seconds / found.waiting_seconds / (1500 * 16) < 1


def test_a_run_is_the_same_each_time(load: Load) -> None:
    short = Load(load.trace[:60], 600, 4096, load.step_time, seed=1)
    assert run(short, 0.9, 2.0) == run(short, 0.9, 2.0)
    everything = run(short, 0.9, math.inf)
    assert everything.capacity > 0
    assert everything.ends == sorted(everything.ends)


def test_command(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    arguments = ["--traces", "azure-code", "--num-requests", "40", "--quantiles", "0", "--quantiles", "0.9"]
    result = CliRunner().invoke(admission_command, [*arguments, "--json", str(file)], catch_exceptions=False)
    assert result.exit_code == 0
    rows = json.loads(file.read_text())["figures"]["admission"]
    assert [row["quantile"] for row in rows] == ["off", 0.9]
    for row in rows:
        assert row["rate"] == pytest.approx(0.9 * max(each["capacity"] for each in rows))
        assert 0 < row["ttft_p50"] <= row["ttft_p99"]
