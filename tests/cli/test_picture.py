"""--plot: refused before anything is run where nothing could be drawn; the same picture from the same figures."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from octavo.cli import picture
from octavo.cli.main import octavo
from octavo.cli.picture import Bar, draw_bars


@pytest.mark.parametrize("command", [["simulate", "azure"], ["bench", "serve"]])
def test_no_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.setattr(picture, "find_spec", lambda _name: None)
    result = CliRunner().invoke(octavo, [*command, "--plot", "out.svg"])
    assert result.exit_code == 1
    assert "pip install matplotlib" in f"{result.exception} {result.output}"


def test_a_plot_is_an_svg_file(tmp_path: Path) -> None:
    for name, words in (("out.png", "ends in .svg"), ("missing/out.svg", "there is no folder")):
        result = CliRunner().invoke(octavo, ["simulate", "azure", "--plot", str(tmp_path / name)])
        assert result.exit_code == 1
        assert words in f"{result.exception} {result.output}"


def test_bars() -> None:
    bars = [Bar("a <b>", 20.1, (16.2, 30.5)), Bar("none", None), Bar("alone", 1234.5)]
    texts = [
        "".join(each.itertext()) for each in ET.fromstring(draw_bars("Used, %", bars)).iter() if each.tag[-4:] == "text"
    ]
    assert {"a <b>", "none", "alone", "20.1", "1,234", "Used, %", "published"} <= set(texts)
    assert draw_bars("Used, %", bars) == draw_bars("Used, %", bars)
    assert "published" not in draw_bars("Used, %", bars[1:])
