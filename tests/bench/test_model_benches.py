"""The benchmarks that run a model, on a small one: the commands as a user calls them, and what their figures say."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from octavo.bench import throughput
from octavo.bench.latency import BREAKDOWN_COLUMNS, GRID, Batch
from octavo.bench.traces import Lengths
from octavo.cli.main import octavo as command
from tests.support.models import rand_model

Bench = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand_model(tmp_path_factory.mktemp("bench") / "model")


@pytest.fixture
def bench(model: Path, tmp_path: Path) -> Bench:
    def run(name: str, *flags: str) -> list[dict[str, Any]]:
        """The rows that the command wrote as JSON; its table has as many lines."""
        path = tmp_path / "figures.json"
        result = CliRunner().invoke(command, ["bench", name, "--model", str(model), "--json", str(path), *flags])
        assert result.exit_code == 0, result.output
        document = json.loads(path.read_text())
        assert document["machine"]["cpu"]
        rows: list[dict[str, Any]] = document["figures"][name]
        assert len(result.stdout.splitlines()) == len(rows) + 3
        return rows

    return run


def test_latency(bench: Bench) -> None:
    shape = ["--batch-size", "2", "--input-len", "3", "--output-len", "4"]
    (row,) = bench("latency", *shape, "--num-iters", "2", "--num-blocks", "32", "--breakdown")
    assert (row["batch_size"], row["input_len"], row["output_len"]) == (2, 3, 4)
    assert row["output_tokens_per_second"] == pytest.approx(8 / row["seconds"])
    assert row["prompt_tokens_per_second"] == pytest.approx(6e3 / row["first_token_milliseconds"])
    assert 0 < row["milliseconds_per_step"] < 1e3 * row["seconds"]
    parts = {name.removesuffix("_milliseconds"): row[name] for name in BREAKDOWN_COLUMNS}
    assert min(parts.values()) > 0
    assert max(parts.values()) < row["milliseconds_per_step"]
    assert parts["python"] > max(parts[name] for name in parts if name not in ("native", "python"))


def test_the_whole_grid_of_latency(bench: Bench) -> None:
    rows = bench("latency", "--num-iters", "1", "--num-iters-warmup", "0", "--num-blocks", "400")
    shapes = [Batch(row["batch_size"], row["input_len"], row["output_len"]) for row in rows]
    assert shapes == list(GRID)
    for row, shape in zip(rows, shapes, strict=True):
        assert 0 < row["first_token_milliseconds"] <= 1e3 * row["seconds"]
        assert (row["milliseconds_per_step"] is None) == (shape.output_len == 1)
        assert row["output_tokens_per_second"] == pytest.approx(shape.batch_size * shape.output_len / row["seconds"])


def test_throughput_against_static_batching(bench: Bench) -> None:
    flags = ["--num-requests", "5", "--divisor", "64", "--static-batch-size", "2", "--repeats", "2"]
    octavo, static = bench("throughput", "--against", "transformers", "--num-blocks", "256", *flags)
    assert (octavo["system"], octavo["ratio"]) == ("Octavo", 1.0)
    assert static["system"] == "transformers, batches of 2"
    for row in (octavo, static):
        assert row["num_requests"] == 5
        assert row["output_tokens_per_second"] == pytest.approx(row["output_tokens"] / row["seconds"])
        all_tokens = row["prompt_tokens"] + row["output_tokens"]
        assert row["total_tokens_per_second"] == pytest.approx(all_tokens / row["seconds"])
        assert len(row["seconds_of_repeats"]) == 2


def test_a_missing_peer_is_one_sentence(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    flags = ["--model", str(model), "--against", "transformers", "--num-blocks", "64"]
    result = CliRunner().invoke(command, ["bench", "throughput", *flags])
    assert result.exit_code == 1
    assert result.output == ("Error: --against transformers needs the library transformers: pip install transformers\n")


def test_ratios_are_of_the_same_repeat() -> None:
    seconds = {"Octavo": [1.0, 2.0, 10.0], "other": [2.0, 2.0, 30.0]}
    octavo, other = throughput.figures([Lengths(3, 1), Lengths(5, 2)], seconds)
    assert (octavo["ratio"], other["ratio"]) == (1.0, 2.0)
    assert (octavo["seconds"], octavo["prompt_tokens"], octavo["output_tokens"]) == (2.0, 8, 3)


def test_interference(bench: Bench) -> None:
    shape = ["--num-streams", "3", "--stream-len", "5", "--prompt-len", "100", "--repeats", "2"]
    alone, streams, both = bench("interference", *shape, "--num-blocks", "256", "--max-num-batched-tokens", "256")
    assert alone["first_token_seconds"] > 0
    assert 0 < streams["itl_p50_milliseconds"] <= streams["itl_p99_milliseconds"]
    assert both["tokens_meanwhile"] >= 1
    assert both["first_token_ratio"] == pytest.approx(sum(both["first_token_ratios"]) / 2)
    assert both["itl_p99_ratio"] == pytest.approx(sum(both["itl_p99_ratios"]) / 2)


def test_startup(bench: Bench) -> None:
    imported, served = bench("startup", "--repeats", "1")
    assert imported["loads_torch"] == "no"
    assert served["best_seconds"] == served["seconds"] > imported["seconds"] > 0


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["bench", "startup", "--model", str(tmp_path / "none.gguf"), "--repeats", "1"])
    assert result.exit_code == 1
    assert "octavo serve ended with code 1: Error: " in result.output
    assert "none.gguf" in result.output


def test_structured_steps(bench: Bench) -> None:
    shape = ["--batch-size", "2", "--input-len", "3", "--output-len", "6"]
    rows = bench("structured", *shape, "--num-iters", "1", "--num-blocks", "64")
    assert [row["constraint"] for row in rows] == ["none", "schema", "regex"]
    assert all(row["milliseconds_per_step"] > 0 for row in rows)
    assert [row["more_percent"] is None for row in rows] == [True, False, False]


def test_structured_schemas(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "schemas.jsonl"
    tests = [{"data": {"a": 1}, "valid": True}, {"data": {"a": "x"}, "valid": False}, {"data": {"b": 1}, "valid": True}]
    entries = [
        {"id": "one", "schema": {"properties": {"a": {"type": "integer"}}}, "tests": tests},
        {"id": "two", "schema": {"not": {}}, "tests": []},
    ]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    (row,) = bench("structured", "--schemas", str(path))
    assert (row["schemas"], row["refused"], row["valid"], row["invalid"]) == (2, 1, 2, 1)
    assert row["valid_percent"] == row["invalid_percent"] == 100
    assert row["mask_microseconds"] > 0
