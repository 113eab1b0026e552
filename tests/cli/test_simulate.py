"""``octavo simulate``: figures, files, and what it refuses."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from octavo.cli.main import octavo

LINES = ["TIMESTAMP,ContextTokens,GeneratedTokens"] + [
    f"2023-11-16 18:{15 + number // 30}:{2 * (number % 30):02}.5000000,{50 + 7 * number},{1 + number}"
    for number in range(60)
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(LINES) + "\n")
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(octavo, ["simulate", *map(str, arguments)])


def test_figures_and_a_picture(trace: Path, tmp_path: Path) -> None:
    result = run(trace, "--json", tmp_path / "out.json", "--plot", tmp_path / "out.svg", "--goodput", "ttft:500 itl:90")
    assert result.exit_code == 0, result.output
    assert "new tokens/s" in result.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    (row,) = document["figures"]["simulate"]
    assert row["num_completed"] == 60
    assert row["output_tokens"] == sum(range(1, 61))
    assert row["goodput_share"] == 1.0
    assert row["num_rejected"] == 0
    assert len(document["figures"]["series"]["filled"]) == len(document["figures"]["series"]["seconds"]) > 10
    assert ET.parse(tmp_path / "out.svg").getroot().tag.endswith("svg")


def test_the_same_run_twice_says_the_same(trace: Path) -> None:
    assert run(trace, "--num-blocks", 80).output == run(trace, "--num-blocks", 80).output


def test_what_cannot_run_and_what_is_left_out_is_told(trace: Path) -> None:
    with trace.open("a") as file:
        file.write("nonsense\n")
    result = run(trace)
    assert result.exit_code == 1
    assert "line 62 of" in result.stderr
    result = run(trace, "--lenient", "--num-blocks", 20)
    assert result.exit_code == 0, result.output
    assert "left out: 1 lines of the trace: the number of fields" in result.stderr
    assert "of 60 requests: can never run" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", 2, "--speed", 2], "--speed and --rate say the same thing"),
        (["--cost-model", "linear:"], "lacks parameters"),
        (["--rate", "nan"], "'nan' is no finite number"),
        (["--speed", "inf"], "'inf' is no finite number"),
        (["--goodput", "ttfb:3"], "'ttfb' is none of ttft, itl, tpot, e2el"),
        (["--goodput", "ttft:nan"], "'ttft:nan' is no time of 0 milliseconds or more"),
        (["--max-num-seqs", 9000], "max_num_batched_tokens"),
    ],
)
def test_settings_that_cannot_work_are_refused(arguments: list[object], message: str, trace: Path) -> None:
    result = run(trace, *arguments)
    assert result.exit_code in {1, 2}
    assert message in result.stderr


def test_a_trace_without_a_request_is_none(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    assert f"{path} has no request; 0 lines of it were left out" in run(path).output
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nnever,3,4\n")
    result = run(path, "--lenient")
    assert (result.exit_code, "1 lines of it were left out" in result.output) == (1, True)


def test_answers_that_end_before_what_they_ask_for(trace: Path, tmp_path: Path) -> None:
    """Two ask for the same; one of them in a memory that has less room."""
    rows = []
    for flags in ([], ["--max-tokens", "2k"], ["--max-tokens", "2k", "--num-blocks", 40]):
        result = run(trace, *flags, "--json", tmp_path / "out.json")
        assert result.exit_code == 0, result.output
        rows += json.loads((tmp_path / "out.json").read_text())["figures"]["simulate"]
    assert [row["output_tokens"] for row in rows] == [sum(range(1, 61))] * 3
    assert [row["num_rejected"] for row in rows] == [0, 0, 0]
    assert rows[0]["e2el_mean"] == rows[1]["e2el_mean"]


def test_a_trace_that_comes_with_octavo(tmp_path: Path) -> None:
    result = run("azure", "--limit", 15, "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads((tmp_path / "out.json").read_text())["figures"]["simulate"]
    assert row["num_completed"] == 15


def test_conversations_of_sharegpt_come_at_a_rate(smollm2_path: Path, tmp_path: Path) -> None:
    """Each has a question of 40 words and an answer of 60; the model's tokenizer counts them."""
    texts = [{"from": "human", "value": " word" * 40}, {"from": "gpt", "value": " word" * 60}]
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([{"id": str(number), "conversations": texts} for number in range(30)], indent=2))
    result = run(path, "--rate", 2, "--seed", 3, "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads((tmp_path / "out.json").read_text())["figures"]["simulate"]
    assert (row["prompt_tokens"], row["output_tokens"]) == (30 * 40, 30 * 60)
    assert row["requests_per_second"] == pytest.approx(2, rel=0.5)


def test_a_figure_of_the_paper_with_the_lengths_of_a_trace(trace: Path, tmp_path: Path) -> None:
    result = run(trace, "--figure", "waste", "--json", tmp_path / "out.json", "--plot", tmp_path / "out.svg")
    assert result.exit_code == 0, result.output
    rows = {row["system"]: row for row in json.loads((tmp_path / "out.json").read_text())["figures"]["waste"]}
    assert rows["Orca (Max)"]["published"] == 20.4
    assert rows["Orca (Max)"]["published_range"] == [20.4, 20.4]
    assert rows["Orca (Max)"]["filled"] < rows["Orca (Pow2)"]["filled"] < rows["Octavo"]["filled"]
    assert ET.parse(tmp_path / "out.svg").getroot().tag.endswith("svg")


def test_either_a_trace_or_a_figure() -> None:
    result = run()
    assert result.exit_code == 2
    assert "give a TRACE to replay, or --figure" in result.output


@pytest.mark.parametrize(
    "flags",
    [
        ("--router", "prefix-aware"),
        ("--prefill-replicas", "2", "--transfer-bandwidth", "25GB", "--kv-bytes-per-token", "23040"),
    ],
)
def test_a_fleet(trace: Path, tmp_path: Path, flags: tuple[str, ...]) -> None:
    result = run(trace, "--replicas", 4, "--repeat", 3, *flags, "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads((tmp_path / "out.json").read_text())["figures"]["simulate"]
    assert row["num_completed"] == 3 * 60
    assert row["output_tokens"] == 3 * sum(range(1, 61))


def test_a_split_needs_all_its_numbers(trace: Path) -> None:
    result = run(trace, "--replicas", 4, "--prefill-replicas", 2)
    assert (result.exit_code, "go together" in result.output) == (2, True)
    flags = ("--transfer-bandwidth", "1GB", "--kv-bytes-per-token", "1")
    result = run(trace, "--replicas", 4, "--prefill-replicas", 2, *flags, "--router", "round-robin")
    assert (result.exit_code, "--router round-robin does not go with --prefill-replicas" in result.output) == (2, True)
    result = run(trace, "--replicas", 2, "--prefill-replicas", 2, *flags)
    assert (result.exit_code, "leave none for answers" in result.output) == (2, True)


def test_settings_of_the_calibration_are_taken_where_no_flag_says_otherwise(trace: Path, tmp_path: Path) -> None:
    path, plain = tmp_path / "costs.json", {"format": 1, "kind": "linear", "base": 0.02, "per_decode": 0.001}
    plain["per_chunk_token"] = 0.001
    settings = {"num_blocks": 300, "max_num_batched_tokens": 128, "max_num_seqs": 8}
    path.write_text(json.dumps(plain | {"calibration": {"model": "m", "settings": settings}}))
    calibrated = run(trace, "--cost-model", path, "--max-num-seqs", 4)
    assert calibrated.stderr == "as the server that was calibrated: --num-blocks 300 --max-num-batched-tokens 128\n"
    path.write_text(json.dumps(plain))
    flags = ("--num-blocks", 300, "--max-num-batched-tokens", 128, "--max-num-seqs", 4)
    assert calibrated.stdout == run(trace, "--cost-model", path, *flags).stdout
    assert calibrated.stdout != run(trace, "--cost-model", path).stdout
    path.write_text(json.dumps(plain | {"calibration": {"settings": {"num_blocks": 0}}}))
    assert "the setting num_blocks is 0; it takes a number from 1" in run(trace, "--cost-model", path).output
