"""Tables for people, JSON for machines."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from octavo.cli.main import octavo
from octavo.cli.table import JSON_FORMAT, print_table, write_json
from octavo.core.errors import ConfigurationError


def test_numbers_stand_right_and_text_left(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "a", "rate": 12345.6, "n": 1234567}, {"name": "long name", "rate": 0.012345, "n": None}]
    print_table(rows, {"name": "name", "rate": "tokens/s", "n": "tokens"})
    assert capsys.readouterr().out.splitlines() == [
        "name       tokens/s     tokens",
        "---------  --------  ---------",
        "a            12,346  1,234,567",
        "long name   0.01235          -",
    ]


def test_a_table_of_no_rows_is_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([], {"name": "name"})
    assert capsys.readouterr().out.split() == ["name", "----"]


def test_json_holds_the_same_figures_and_its_version(tmp_path: Path) -> None:
    write_json(tmp_path / "figures.json", {"rows": [{"rate": 12345.6}]})
    document = json.loads((tmp_path / "figures.json").read_text())
    assert document["figures"] == {"rows": [{"rate": 12345.6}]}
    assert document["format"] == JSON_FORMAT
    assert document["machine"]["cores"] >= 1


def test_no_path_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_json(None, {"rows": []})
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot write .*figures\.json: No such file or directory"):
        write_json(tmp_path / "missing" / "figures.json", {})


def test_a_file_that_cannot_be_written_is_told_before_the_run(tmp_path: Path) -> None:
    for command in (["simulate", "azure"], ["bench", "scheduler"], ["plan", "smollm2-135m"]):
        result = CliRunner().invoke(octavo, [*command, "--json", str(tmp_path / "missing" / "figures.json")])
        assert result.exit_code == 1
        assert "there is no folder" in f"{result.exception} {result.output}"
