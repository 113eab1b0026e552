"""``octavo doctor`` on traces: what it prints, files, exit codes, and what it refuses."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from octavo.cli.main import octavo


def run(*arguments: object) -> Result:
    return CliRunner().invoke(octavo, ["doctor", *map(str, arguments)])


def words(result: Result) -> str:
    return " ".join(result.stdout.split())


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Ten prompts of 160 tokens in turn, as a server logs them."""
    lines = ['{"octavo_request_log": 1, "octavo": "0.1.0", "start": 1.0, "block_size": 16}']
    for number in range(110):
        names = "".join(f"{100 * (number % 10) + block:08x}" for block in range(10))
        lines.append(json.dumps({"n": number, "t": float(number), "prompt": 160, "output": 30, "blocks": names}))
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_log_of_a_server(log: Path, tmp_path: Path) -> None:
    well = run(log)
    assert well.exit_code == 0, well.output
    assert "Nothing is wrong with" in well.stdout
    assert "give --num-blocks" in words(well)
    ill = run(log, "--num-blocks", 90, "--json", tmp_path / "out.json")
    assert ill.exit_code == 3
    assert "1. severe (cache-thrashing) A cache of 1,440 tokens has 0%" in words(ill)
    report = json.loads((tmp_path / "out.json").read_text())["figures"]["doctor"]
    assert report["findings"][0]["figures"]["lost_tokens"] == 16_000
    assert report["is_severe"]


def test_what_comes_with_octavo() -> None:
    result = run("azure", "--limit", 500)
    assert result.exit_code == 0, result.output
    assert "500 requests in" in words(result)
    assert "lengths alone" in words(result)


def test_lines_that_are_no_requests(log: Path) -> None:
    with log.open("a") as file:
        file.write("nonsense\n")
    refused = run(log)
    assert refused.exit_code == 1
    assert "line 112 of" in refused.stderr
    told = run(log, "--lenient")
    assert told.exit_code == 0, told.output
    assert "Left out: 1 lines of the trace: no JSON." in words(told)


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "is empty"), ("what is this\n", "no trace of a known format"), (None, "cannot read the trace")],
)
def test_what_is_no_trace(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    if content is not None:
        path.write_text(content)
    result = run(path)
    assert result.exit_code == 1
    assert message in result.stderr
