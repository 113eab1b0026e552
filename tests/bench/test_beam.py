"""``octavo bench beam`` on a small model: as a user calls it, and the loop outside the core by itself."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from octavo.bench.beam import search_in_core, search_outside
from octavo.cli.main import octavo as command
from octavo.core.beam_search import BeamSearchParams
from octavo.llm import LLM
from tests.support.models import rand_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand_model(tmp_path_factory.mktemp("bench") / "model")


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_the_loop_outside_finds_what_the_core_finds(model: Path, early_stopping: bool | str) -> None:
    llm = LLM(str(model), num_blocks=128)
    params = BeamSearchParams(3, 20, length_penalty=0.6, early_stopping=early_stopping)
    found = search_in_core(llm, [5, 6, 7], params)
    assert len(set(found)) == 3
    assert search_outside(llm, [5, 6, 7], params) == found


def test_command(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    shape = ["--beam-width", "3", "--input-len", "5", "--output-len", "4", "--repeats", "2", "--num-blocks", "64"]
    result = CliRunner().invoke(command, ["bench", "beam", "--model", str(model), "--json", str(path), *shape])
    assert result.exit_code == 0, result.output
    core, uncached, cached = json.loads(path.read_text())["figures"]["beam"]
    assert (core["system"], core["ratio"]) == ("in the core", 1.0)
    assert [uncached["system"], cached["system"]] == [
        "a loop outside, no prefix cache",
        "a loop outside, prefix cache",
    ]
    for row in (core, uncached, cached):
        assert (row["beam_width"], row["prompt_tokens"], row["output_tokens"]) == (3, 5, 12)
        assert row["output_tokens_per_second"] == pytest.approx(12 / row["seconds"])
        assert len(row["seconds_of_repeats"]) == 2
