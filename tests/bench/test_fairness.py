"""The comparison of scheduling policies: what must hold of its figures."""

import json
from pathlib import Path

from click.testing import CliRunner

from octavo.bench.fairness import DIVISOR, Load, fairness_command, measure, run
from octavo.bench.traces import draw_lengths
from octavo.core.scheduler_types import POLICY_NAMES, PolicySettings

LOAD = Load(draw_lengths(132, seed=1, divisor=DIVISOR), rate=1.0, num_blocks=300, max_num_seqs=4, seed=1)


def test_fair_keeps_the_bound_and_first_come_first_served_does_not() -> None:
    in_order, by_priority, fair = measure(LOAD)
    assert in_order.bound < in_order.worst_difference
    assert fair.worst_difference <= fair.bound
    assert fair.light_p90 < in_order.light_p50 / 4
    assert by_priority.light_p90 < in_order.light_p50 / 4


def test_a_run_is_the_same_each_time() -> None:
    first, second = (run(LOAD, PolicySettings("fair")) for _ in range(2))
    assert first.differences == second.differences
    assert list(first.waits.values()) == list(second.waits.values())
    assert len(first.waits) == 132


def test_command(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    result = CliRunner().invoke(fairness_command, ["--num-requests", "44", "--json", str(file)], catch_exceptions=False)
    assert result.exit_code == 0
    rows = json.loads(file.read_text())["figures"]["fairness"]
    assert [row["policy"] for row in rows] == list(POLICY_NAMES)
    assert all(row["differences"] for row in rows if row["policy"] != "priority")
