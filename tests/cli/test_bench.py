"""``octavo bench``: a table for people, the same figures for machines."""

import pytest
from click.testing import CliRunner

from octavo.cli.bench import BENCHES
from octavo.cli.main import octavo as command


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_writes_json(name: str) -> None:
    shown = CliRunner().invoke(command, ["bench", name, "--help"])
    assert shown.exit_code == 0, shown.exception
    assert "--json FILE" in shown.output
