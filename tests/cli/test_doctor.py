"""``octavo doctor`` on traces: what it prints, files, exit codes, and what it refuses."""

import json
import os
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


SYSTEM = " ".join(f"Rule {number}: answer question {number} of the list in one sentence." for number in range(60))


@pytest.fixture(params=["batch", "messages", "prompt"])
def prompts(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Forty conversations whose system prompt begins with the time."""
    lines = []
    for number in range(40):
        system = f"It is {8 + number // 6:02}:{10 * (number % 6):02}.\n{SYSTEM}"
        fields: dict[str, object] = {"prompt": f"{system}\nWhat about {number}?"}
        if request.param != "prompt":
            user = {"role": "user", "content": [{"type": "text", "text": f"What about {number}?"}]}
            fields = {"messages": [{"role": "system", "content": system}, user]}
        if request.param == "batch":
            fields = {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": fields}
        lines.append(json.dumps(fields))
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_prompts_by_characters(prompts: Path, tmp_path: Path) -> None:
    result = run(prompts, "--json", tmp_path / "out.json")
    assert result.exit_code == 3, result.output
    assert "severe (differing-field) A time that differs at character" in words(result)
    assert '"08:00" or "08:10"' in words(result)
    assert "--tokenizer MODEL counts tokens" in words(result)
    assert "What about" not in result.stdout
    assert "Rule 1" not in result.stdout
    (finding,) = json.loads((tmp_path / "out.json").read_text())["figures"]["doctor"]["findings"]
    assert finding["figures"]["lost_each"] == pytest.approx(len(SYSTEM) + len("\nWhat about "), abs=20)


def test_prompts_by_the_tokens_of_a_model(prompts: Path, smollm2_path: Path, tmp_path: Path) -> None:
    result = run(prompts, "--tokenizer", smollm2_path, "--json", tmp_path / "out.json")
    assert result.exit_code == 3, result.output
    (finding,) = json.loads((tmp_path / "out.json").read_text())["figures"]["doctor"]["findings"]
    assert finding["figures"]["kind"] == "a time"
    assert finding["figures"]["start"] < 20
    assert finding["figures"]["column"] == len("It is ") + 1
    assert 60 * 13 < finding["figures"]["lost_each"] < 60 * 20
    assert "characters, about four" not in words(result)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "line 41 of"),
        ('{"prompt": [1, 2]}', "prompt is no text"),
        ('{"text": "x"}', "there is neither messages nor prompt"),
        ('{"messages": []}', "messages is no list of messages"),
        ('{"messages": ["x"]}', "a message is no JSON object with a role"),
        ('{"messages": [{"role": "user", "content": 3}]}', "the content of a message is no text"),
        ('{"messages": [{"role": "user", "content": ""}]}', "messages is without any text"),
        ('{"body": 3}', "body is no JSON object"),
    ],
)
def test_lines_that_are_no_prompts(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "{SYSTEM}"}}\n' * 40 + line + "\n")
    refused = run(path)
    assert refused.exit_code == 1
    assert message in refused.stderr
    told = run(path, "--lenient")
    assert told.exit_code == 0, told.output
    assert "Left out: 1 lines of the trace" in words(told)
    assert "Nothing is wrong with" in words(told)


@pytest.mark.parametrize("timestamp", ["NaN", "1e308", "1" + "0" * 400])
def test_times_that_no_trace_has(timestamp: str, tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    path.write_text(f'{{"timestamp": {timestamp}, "input_length": 5, "output_length": 4, "hash_ids": [1]}}\n')
    refused = run(path)
    assert refused.exit_code == 1
    assert "no time from 0 on" in refused.stderr
    nothing = run(path, "--lenient")
    assert nothing.exit_code == 1, "where nothing was read nobody can say that nothing is wrong"
    assert "there are no requests in" in nothing.stderr
    assert "1 lines of the trace: timestamp" in nothing.stderr


def test_a_pipe_is_read_but_once(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for more in ((), ("--format", "mooncake"), ("--format", "text")):
        refused = run(path, *more)
        assert refused.exit_code == 1
        assert "is a pipe" in refused.stderr


@pytest.mark.parametrize("source", ["a" * 300, "a:" * 300])
def test_names_that_no_file_has(source: str) -> None:
    refused = run(source)
    assert refused.exit_code == 1
    assert refused.stderr.startswith("Error: ")


def test_a_block_of_more_tokens_than_any_server_takes(log: Path) -> None:
    assert run(log, "--block-size", 1 << 30).exit_code == 2


def test_a_field_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "hello"}\n{"text": "x"}\n')
    assert "1 lines of the trace: there is neither messages nor prompt." in words(run(path, "--lenient"))


def test_of_huge_conversations_the_beginning_is_read(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    tools = [{"type": "function", "function": {"name": "f", "description": "x" * 1_000_000}}]
    messages = [*[{"role": "user", "content": ""}] * 5000, {"role": "user", "content": "hello"}]
    path.write_text(3 * (json.dumps({"messages": messages, "tools": tools}) + "\n"))
    assert "3 prompts of 15 characters, 16,384 characters each on average" in words(run(path))
