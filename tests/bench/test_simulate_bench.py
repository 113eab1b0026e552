"""``octavo bench simulate``, small: what it measures is there."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from octavo.bench.simulate import simulate_command


def test_both_loads_are_played_to_their_ends(tmp_path: Path) -> None:
    arguments = ["--num-requests", "120", "--num-running", "20", "--json", str(tmp_path / "out.json")]
    result = CliRunner().invoke(simulate_command, arguments)
    assert result.exit_code == 0, result.output
    crowd, azure = json.loads((tmp_path / "out.json").read_text())["figures"]["simulate"]
    assert crowd["num_requests"] == azure["num_requests"] == 120
    assert crowd["mean_rows"] == pytest.approx(18, abs=3)
    assert azure["simulated_seconds"] > 119 / 5.5
    assert min(row["tokens_per_cpu_second"] for row in (crowd, azure)) > 0
