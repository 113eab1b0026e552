"""The comparison of orders of admission: what must hold of its figures."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from octavo.bench.skipping import BOUNDS, Load, measure, run, skipping_command
from octavo.bench.traces import draw_lengths

LOAD = Load(draw_lengths(60, seed=1), rate=0.05, num_blocks=400, max_num_batched_tokens=512, seed=1)


def test_small_requests_gain_and_the_bounds_hold() -> None:
    in_order, bounded, unbounded = measure(LOAD)
    assert (in_order.num_passed, in_order.delay_max, in_order.most_skips) == (0, None, 0)
    assert bounded.small_p50 < in_order.small_p50
    assert 0 < bounded.most_skips <= BOUNDS["within the default bounds"].max_skips
    assert bounded.delay_max is not None
    assert unbounded.delay_max is not None
    assert bounded.delay_max < unbounded.delay_max


def test_a_run_is_the_same_each_time() -> None:
    bounds = BOUNDS["within the default bounds"]
    assert run(LOAD, bounds) == run(LOAD, bounds)


@pytest.mark.parametrize("rate", [0.01, 5.0])
def test_every_request_waits_one_step_at_least_however_they_arrive(rate: float) -> None:
    load = Load(LOAD.lengths[:20], rate, LOAD.num_blocks, LOAD.max_num_batched_tokens, seed=2)
    found = run(load, BOUNDS["nobody"])
    assert len(found.waits) == 20
    assert min(found.waits) >= 1


def test_command(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    arguments = ["--num-requests", "20", "--rate", "0.1", "--json", str(file)]
    result = CliRunner().invoke(skipping_command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert [row["who_passes"] for row in json.loads(file.read_text())["figures"]["skipping"]] == list(BOUNDS)
    assert "without bounds" in result.output
