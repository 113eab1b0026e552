"""Readers of traces: what they read, and how they name what is none."""

import gzip
from pathlib import Path

import pytest

from octavo.bench.traces import azure_trace
from octavo.core.errors import ConfigurationError
from octavo.sim.traces.request import TracedRequest
from octavo.sim.traces.source import AS_IT_WAS, Pace, TraceSource

AZURE = [
    "TIMESTAMP,ContextTokens,GeneratedTokens",
    "2023-11-16 18:15:46.6805900,374,44",
    "2023-11-16 18:15:50.9951690,396,109",
    "2023-11-16 18:15:51.2951690,5,1",
]


def write(path: Path, lines: list[str], end: str = "\n") -> Path:
    path.write_text("\n".join(lines) + end)
    return path


def read(path: Path, pace: Pace = AS_IT_WAS, *, lenient: bool = False) -> list[TracedRequest]:
    return list(TraceSource(path, lenient=lenient).requests(pace))


def test_an_azure_trace_is_known_by_its_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "trace", AZURE)
    found = read(path)
    assert [(request.prompt, request.output) for request in found] == [(374, 44), (396, 109), (5, 1)]
    assert [request.seconds for request in found] == pytest.approx([0, 4.314579, 4.614579])
    assert read(write(tmp_path / "no end", AZURE, end="")) == found
    swapped = [",".join(reversed(line.split(","))) for line in AZURE]
    assert read(write(tmp_path / "swapped", swapped)) == found
    zipped = tmp_path / "zipped"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert read(zipped) == found


def test_the_published_trace_reads_as_elsewhere() -> None:
    path = Path(__file__).parents[2] / "octavo/data/azure/AzureLLMInferenceTrace_conv.csv.gz"
    source = TraceSource(path)
    assert [(each.seconds, each.prompt, each.output) for each in source.requests()] == [
        (each.seconds, *each.lengths) for each in azure_trace("azure")
    ]
    assert source.share_read == 1.0


def test_a_trace_is_played_faster_or_at_a_rate(tmp_path: Path) -> None:
    path = write(tmp_path / "trace", AZURE)
    assert [request.seconds for request in read(path, Pace(speed=2))] == pytest.approx([0, 2.1572895, 2.3072895])
    assert [request.seconds for request in read(path, Pace(rate=4))][-1] == pytest.approx(2 / 4)
    assert [request.seconds for request in read(path, Pace(rate=4, limit=2))] == pytest.approx([0, 1 / 4])
    assert len(read(path, Pace(limit=1))) == 1
    with pytest.raises(ConfigurationError, match="no --rate can be made"):
        read(path, Pace(rate=4, limit=1))


BAD_LINES = {
    "2023-11-16 18:15:52,-3,4": "ContextTokens is -3; a request has at least one token",
    "2023-11-16 18:15:52,3,0": "GeneratedTokens is 0; a request has at least one token",
    "2023-11-16 18:15:52,99999999999,4": "ContextTokens is 99999999999, above the 10000000 tokens",
    "2023-11-16 18:15:52,3.5,4": "ContextTokens is '3.5', no whole number",
    "2023-11-16 18:15:52,,4": "ContextTokens is '', no whole number",
    "yesterday,3,4": "TIMESTAMP is 'yesterday', no time",
    "2023-11-16 18:15:52,3": "the number of fields is 2 where the first line has 3",
    "2023-11-16 18:15:52,3,4,5": "the number of fields is 4 where the first line has 3",
    "2023-11-16 18:15:48,3,4": "its time is 3.29517 seconds before that of the request before it",
    "2023-11-16 18:15:51.2951690,3,4": "its time is that of the request before it",
}


@pytest.mark.parametrize(("line", "message"), BAD_LINES.items())
def test_a_line_that_is_no_request_is_named_or_left_out(line: str, message: str, tmp_path: Path) -> None:
    good = "2023-11-16 18:15:59.0000000,7,8"
    path = write(tmp_path / "trace.csv", [*AZURE, line, good])
    with pytest.raises(ConfigurationError) as caught:
        read(path)
    assert f"line 5 of {path}: {message}" in str(caught.value)
    source = TraceSource(path, lenient=True)
    assert [request.prompt for request in source.requests()] == [374, 396, 5, 7]
    assert source.skipped.total() == 1


def test_half_a_line_at_the_end_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.csv", [*AZURE, "2023-11-16 18:1"], end="")
    with pytest.raises(ConfigurationError, match=r"line 5 of .*: cut off \(the number of fields is 1"):
        read(path)
    source = TraceSource(path, lenient=True)
    assert len(list(source.requests())) == 3
    assert dict(source.skipped) == {"cut off (the number of fields": 1}


def test_missing_columns_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.csv", ["TIMESTAMP,ContextTokens", "2023-11-16 18:15:52,3"])
    with pytest.raises(ConfigurationError, match=r"line 1 of .* names no column GeneratedTokens; it has TIMESTAMP"):
        read(path)


def test_files_that_are_no_traces_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read the trace .*absent"):
        TraceSource(tmp_path / "absent")
    with pytest.raises(ConfigurationError, match="is empty"):
        TraceSource(write(tmp_path / "empty", []))
    with pytest.raises(ConfigurationError, match=r"no trace of a known format .*'once upon a time'"):
        TraceSource(write(tmp_path / "tale", ["once upon a time"]))
    torn = tmp_path / "torn"
    torn.write_bytes(gzip.compress("\n".join(AZURE).encode())[:-20])
    with pytest.raises(ConfigurationError, match="neither text nor gzipped text"):
        read(torn)
    (tmp_path / "binary").write_bytes(b"TIMESTAMP\xff\xfe\n")
    with pytest.raises(ConfigurationError, match="neither text nor gzipped text"):
        read(tmp_path / "binary")
