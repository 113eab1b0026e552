"""``octavo bench speculation`` on a small model, as a user calls it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from octavo.bench.speculation import QUESTIONS
from octavo.cli.main import octavo as command
from tests.support.models import rand_model


def test_command(tmp_path: Path) -> None:
    model, path = rand_model(tmp_path / "model"), tmp_path / "figures.json"
    flags = ["--max-tokens", "12", "--repeats", "2", "--num-blocks", "128"]
    result = CliRunner().invoke(command, ["bench", "speculation", "--model", str(model), "--json", str(path), *flags])
    assert result.exit_code == 0, result.output
    rows = json.loads(path.read_text())["figures"]["speculation"]
    assert [(row["question"], row["speculation"]) for row in rows] == [
        (question, speculation) for question in QUESTIONS for speculation in ("off", "ngram")
    ]
    for plain, drafted in zip(rows[::2], rows[1::2], strict=True):
        assert (plain["ratio"], plain["draft_tokens"], plain["accepted_tokens"]) == (1.0, 0, 0)
        assert plain["steps"] >= plain["output_tokens"]
        assert drafted["output_tokens"] == plain["output_tokens"]
        assert drafted["steps"] == plain["steps"] - drafted["accepted_tokens"]
        for row in (plain, drafted):
            assert len(row["seconds_of_repeats"]) == 2
            speed = (row["output_tokens"] - 1) / (sum(row["seconds_of_repeats"]) / 2)
            assert row["output_tokens_per_second"] == pytest.approx(speed)
