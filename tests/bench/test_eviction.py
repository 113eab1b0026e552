"""``octavo bench eviction``: the reader of traces, generated conversations, the command."""

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from octavo.bench.eviction import EvictionFigures, eviction_command
from octavo.bench.eviction_traces import ConversationSettings, generate_conversations, read_mooncake
from octavo.core.errors import ConfigurationError

LINES = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 9, "input_length": 700, "output_length": 5, "hash_ids": [0, 3]},
    {"timestamp": 12, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 15, "input_length": 1536, "output_length": 5, "hash_ids": [0, 1, 4]},
]


@pytest.fixture
def trace_path(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def test_the_command_reports_every_policy_and_the_optimum(trace_path: Path, tmp_path: Path) -> None:
    arguments = [str(trace_path), "--num-blocks", "10", "--json", str(tmp_path / "figures.json")]
    result = CliRunner().invoke(eviction_command, arguments)
    assert result.exit_code == 0, result.output
    (row,) = json.loads((tmp_path / "figures.json").read_text())["figures"]["eviction"]
    hit_tokens = 1100 + 2 * 512  # the third request whole, its last block for the 76 tokens in it; two blocks then
    assert (row["lru"], row["reuse"], row["optimum"]) == (hit_tokens, hit_tokens, hit_tokens)
    assert row["gap_closed"] is None


def test_without_a_trace_it_generates_conversations() -> None:
    result = CliRunner().invoke(eviction_command, ["--num-conversations", "20", "--num-blocks", "300"])
    assert result.exit_code == 0, result.output
    assert "gap closed" in result.output


def test_a_gzipped_trace_reads_the_same(trace_path: Path, tmp_path: Path) -> None:
    zipped = tmp_path / "trace.jsonl.gz"
    zipped.write_bytes(gzip.compress(trace_path.read_bytes()))
    assert read_mooncake(zipped) == read_mooncake(trace_path)


@pytest.mark.parametrize("line", ['{"input_length": 3}', '{"hash_ids": [1], "input_length": null}', "[1]", "no"])
def test_a_line_that_is_no_request_is_named(line: str, trace_path: Path) -> None:
    with trace_path.open("a") as file:
        file.write(line)
    with pytest.raises(ConfigurationError, match=r"line 5 of .*trace\.jsonl"):
        read_mooncake(trace_path)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read the trace .*absent"):
        read_mooncake(tmp_path / "absent")
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(b"{}")[:-9])
    with pytest.raises(ConfigurationError, match=r"broken\.gz is neither text"):
        read_mooncake(broken)


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    result = CliRunner().invoke(eviction_command, [str(tmp_path / "empty")])
    assert isinstance(result.exception, ConfigurationError)


def test_the_share_of_the_gap() -> None:
    row = EvictionFigures(num_blocks=10, lru=100, reuse=125, optimum=200).row()
    assert (row["gain"], row["gap_closed"]) == (25.0, 25.0)
    assert EvictionFigures(num_blocks=10, lru=0, reuse=0, optimum=0).row()["gain"] is None


def test_conversations_grow_by_turns_and_share_the_system_prompt() -> None:
    settings = ConversationSettings(num_conversations=30, system_prompt=100)
    trace = generate_conversations(settings, seed=1)
    assert trace == generate_conversations(settings, seed=1)
    assert trace != generate_conversations(settings, seed=2)
    last: dict[bytes, list[bytes]] = {}
    for request in trace.requests:
        names = list(request.names)
        assert request.num_tokens // 16 <= len(names)
        assert names[:6] == list(trace.requests[0].names[:6])  # 100 tokens are six blocks and a piece
        own = names[6] if len(names) > 6 else b""
        before = last.get(own, [])
        assert names[: len(before)] == before
        last[own] = names
    assert len(last) == pytest.approx(30, abs=2)
