"""Readers of traces: what they read, and how they name what is none."""

import csv
import gzip
import json
import tarfile
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

import pytest

from octavo.core.errors import ConfigurationError
from octavo.sim.traces import request_log
from octavo.sim.traces.request import TracedRequest
from octavo.sim.traces.source import AS_IT_WAS, LengthsSource, Pace, TraceSource, detect_format, open_source

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
    """Against Python's own reader of CSV."""
    path = Path(__file__).parents[2] / "octavo/data/azure/AzureLLMInferenceTrace_conv.csv.gz"
    rows = list(csv.DictReader(gzip.decompress(path.read_bytes()).decode().splitlines()))
    times = [datetime.fromisoformat(row["TIMESTAMP"]) for row in rows]
    source = TraceSource(path)
    assert [(each.seconds, each.prompt, each.output) for each in source.requests()] == [
        ((time - times[0]).total_seconds(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        for time, row in zip(times, rows, strict=True)
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
    "2023-11-16 18:15:52,1_0,4": "ContextTokens is '1_0', no whole number",
    "2023-11-16 18:15:52," + "9" * 5000 + ",4": "ContextTokens is '9999",
    "2023-11-16 18:15:52,3\r2023-11-16 18:15:53,3,4": "no CSV",
    "2023-11-16 18:15:52,\xe9,4": r"ContextTokens is '\\xe9', no whole number",
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
    path.write_bytes(path.read_bytes().decode().encode("latin-1"))
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
    assert dict(source.skipped) == {"cut off": 1}


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
    with pytest.raises(ConfigurationError, match=r"line 1 of .* names no column"):
        read(tmp_path / "binary")
    old_mac = write(tmp_path / "old_mac", ["\r".join(AZURE)])
    with pytest.raises(ConfigurationError, match=r"line 1 of .*: no CSV"):
        read(old_mac)


# --- Mooncake ---

MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 0, "input_length": 700, "output_length": 4, "hash_ids": [0, 3]},
    {"timestamp": 3000, "input_length": 512, "output_length": 3, "hash_ids": [0]},
]


def mooncake(path: Path, *more: dict[str, object]) -> Path:
    return write(path, [json.dumps(line) for line in [*MOONCAKE, *more]])


def test_a_mooncake_trace_is_known_by_its_fields(tmp_path: Path) -> None:
    source = open_source(mooncake(tmp_path / "trace"))
    assert source.format == "mooncake"
    assert list(source.requests()) == [
        TracedRequest(0.0, 1100, 5, None, [0, 1, 2], 512),
        TracedRequest(0.0, 700, 4, None, [0, 3], 512),
        TracedRequest(3.0, 512, 3, None, [0], 512),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"timestamp": 2999}, "its time is 0.001 seconds before"),
        ({"timestamp": -1}, "timestamp is -1, no time from 0 on"),
        ({"timestamp": "now"}, "timestamp is 'now', no time from 0 on"),
        ({"input_length": 0}, "input_length is 0; a request has at least one token"),
        ({"input_length": 1.5}, "input_length is 1.5, no whole number"),
        ({"output_length": -2}, "output_length is -2; a request has at least one token"),
        ({"output_length": 10**9}, "output_length is 1000000000, above"),
        ({"input_length": 10**400}, f"input_length is 1{'0' * 39}, above"),
        ({"hash_ids": [1]}, "the number of hash_ids is 1, but 700 tokens are 2 blocks of 512"),
        ({"hash_ids": ["a", 1]}, "hash_ids is ['a', 1], no list of whole numbers"),
        ({"hash_ids": 3}, "hash_ids is 3, no list"),
    ],
)
def test_a_line_of_mooncake_that_is_no_request_is_named(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    good = {"timestamp": 4000, "input_length": 700, "output_length": 4, "hash_ids": [0, 3]}
    path = mooncake(tmp_path / "trace", good | changes, good)
    with pytest.raises(ConfigurationError) as caught:
        read(path)
    assert f"line 4 of {path}: {message}" in str(caught.value)
    source = open_source(path, lenient=True)
    assert len(list(source.requests())) == 4
    assert source.skipped.total() == 1


@pytest.mark.parametrize("field", MOONCAKE[0])
def test_a_field_of_mooncake_that_is_missing_is_named(field: str, tmp_path: Path) -> None:
    line = {name: value for name, value in MOONCAKE[2].items() if name != field}
    with pytest.raises(ConfigurationError, match=rf"line 4 of .*: {field} is missing"):
        read(mooncake(tmp_path / "trace", line))


def test_half_a_line_of_json_is_named(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "trace")
    path.write_text(path.read_text() + '{"timestamp": 40')
    with pytest.raises(ConfigurationError, match=r"line 4 of .*: cut off \(no JSON\)"):
        read(path)


# --- Octavo's own ---

LOG = [
    request_log.header(1_000_000.0, 16, "0.1.0"),
    request_log.to_line(1, TracedRequest(2.5, 20, 3, 100, [0x1F, 0x7FFFFFFF], 16, "ab")),
    request_log.to_line(0, TracedRequest(1.0, 5, 30, None, [7, 8, 9], 16)),
    request_log.header(1_000_100.0, 32, "0.1.0"),
    request_log.to_line(0, TracedRequest(0.25, 40, 1, 1, [3, 4], 32)),
]


def test_a_request_log_is_read_in_order_of_arrival(tmp_path: Path) -> None:
    source = open_source(write(tmp_path / "log", LOG))
    assert source.format == "octavo"
    assert list(source.requests()) == [
        TracedRequest(0.0, 5, 30, None, [7, 8, 9], 16),
        TracedRequest(1.5, 20, 3, 100, [0x1F, 0x7FFFFFFF], 16, "ab"),
        TracedRequest(99.25, 40, 1, 1, [3, 4], 32),
    ]


def test_what_follows_a_bad_head_is_of_no_run(tmp_path: Path) -> None:
    """Its times count from nobody knows when."""
    bad = '{"octavo_request_log":1,"start":null,"block_size":16}'
    source = open_source(write(tmp_path / "log", [*LOG[:3], bad, LOG[4], *LOG[3:]]), lenient=True)
    assert len(list(source.requests())) == 3
    assert dict(source.skipped) == {"start": 1, "no line with octavo_request_log": 1}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"n":2,"t":3,"prompt":5}', "output is missing"),
        ('{"n":2,"t":3,"prompt":5,"output":0}', "output is 0; a request"),
        ('{"n":2,"t":-3,"prompt":5,"output":1}', "t is -3, no time from 0 on"),
        ('{"n":2,"t":3,"prompt":5,"output":1,"blocks":"123"}', "blocks is '123', not 8 hexadecimal digits a block"),
        ('{"n":2,"t":3,"prompt":5,"output":1,"blocks":"1234567x"}', "blocks is '1234567x', not 8 hexadecimal"),
        ('{"n":2,"t":3,"prompt":5,"output":1,"blocks":"-1234567"}', "blocks is '-1234567', not 8 hexadecimal"),
        ('{"n":2,"t":3,"prompt":30,"output":3,"blocks":"000000010000000200000003"}', "the number of blocks is 3, but"),
        ('{"n":2,"t":3,"prompt":5,"output":4,"max_tokens":3}', "max_tokens is 3, but it had 4"),
        ('{"n":2,"t":3,"prompt":5,"output":4,"tenant":{}}', "tenant is {}, no name"),
        ('{"octavo_request_log":1,"start":5,"block_size":0}', "block_size is 0, not 1 to 65536"),
        ('{"octavo_request_log":1,"start":-5,"block_size":16}', "start is -5, no time from 0 on"),
        ('{"t":3,"prompt":5,"output":1}', "n is missing"),
        (LOG[4], "request number 0 of its run is there twice"),
        ('{"n":2,"t":3,"prompt":5,"outp', "no JSON"),
    ],
)
def test_a_line_of_a_request_log_that_is_none_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "log", [*LOG, line])
    with pytest.raises(ConfigurationError) as caught:
        read(path)
    assert f"line 6 of {path}: {message}" in str(caught.value)
    source = open_source(path, lenient=True)
    assert len(list(source.requests())) == 3
    assert source.skipped.total() == 1


def test_a_request_log_of_a_later_version_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"line 1 of .*: the log has version 2, this Octavo reads 1"):
        read(write(tmp_path / "log", [LOG[0].replace('"octavo_request_log": 1', '"octavo_request_log": 2')]))


def test_a_request_log_that_lacks_its_beginning_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "log", LOG[1:])
    with pytest.raises(ConfigurationError, match=r"line 1 of .*: no line with octavo_request_log is before it"):
        list(open_source(path, "octavo").requests())


def test_a_request_that_ends_too_late_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "MAX_LATE", 2)
    lines = [request_log.to_line(number, TracedRequest(float(number), 5, 5)) for number in (1, 2, 3, 4, 0)]
    with pytest.raises(ConfigurationError, match=r"line 6 of .*: more than 2 requests that came later stand before it"):
        read(write(tmp_path / "log", [LOG[0], *lines]))
    in_time = [request_log.to_line(number, TracedRequest(float(number), 5, 5)) for number in (2, 1, 0, 5, 3, 4)]
    found = read(write(tmp_path / "log", [LOG[0], *in_time]))
    assert [request.seconds for request in found] == [0, 1, 2, 3, 4, 5]


# --- lengths alone ---


def test_lengths_come_as_a_poisson_process() -> None:
    lengths = [(number, 2 * number) for number in range(1, 5001)]
    source = LengthsSource("sharegpt", lengths)
    found = list(source.requests(Pace(rate=20.0, seed=3)))
    assert [(each.prompt, each.output) for each in found] == lengths
    assert found == list(source.requests(Pace(rate=20.0, seed=3)))
    assert found != list(source.requests(Pace(rate=20.0, seed=4)))
    gaps = [b.seconds - a.seconds for a, b in pairwise(found)]
    assert fmean(gaps) == pytest.approx(1 / 20, rel=0.05)
    assert stdev(gaps) == pytest.approx(1 / 20, rel=0.05)
    assert len(list(source.requests(Pace(limit=7)))) == 7


def test_conversations_of_sharegpt_are_known_by_their_list(tmp_path: Path) -> None:
    assert detect_format(write(tmp_path / "texts", ['[{"id": "a", "conversations": []}]'])) == "sharegpt"


# --- ServeGen ---


def servegen(folder: Path, windows: str, client: str = "chunk-3") -> Path:
    folder.mkdir(exist_ok=True)
    lengths = {"input_tokens": "{5: 0.25, 9: 0.75, 11: 0.0}", "output_tokens": "{1: 0.5, 30: 0.5}"}
    later = {"input_tokens": "{100: 1.0}", "output_tokens": "{200: 1.0}"}
    (folder / f"{client}-trace.csv").write_text(windows)
    nothing = {"input_tokens": "{}", "output_tokens": "{}"}
    datasets = {"0": lengths, "300": nothing, "1200": later}
    (folder / f"{client}-dataset.json").write_text(json.dumps(datasets))
    return folder


WINDOWS = "0,2.0,1.0,Gamma,1.0,0.5\n600,0,0,,0,0\n1200,8.0,0.5,Gamma,4.0,0.03125\n"


def test_servegen_draws_rates_pauses_and_lengths(tmp_path: Path) -> None:
    folder = servegen(tmp_path / "parameters", WINDOWS)
    source = open_source(folder)
    assert source.format == "servegen"
    found = list(source.requests())
    assert found == list(source.requests())
    assert found != list(source.requests(Pace(seed=1)))
    assert source.share_read > 0.99
    first, rest = [each for each in found if each.seconds < 600], [each for each in found if each.seconds >= 600]
    assert len(first) == pytest.approx(1200, rel=0.1)
    assert len(rest) == pytest.approx(4800, rel=0.03)
    assert min(each.seconds for each in rest) >= 1200
    assert max(each.seconds for each in rest) < 1800
    assert {each.prompt for each in first} == {5, 9}
    assert fmean(each.prompt == 9 for each in first) == pytest.approx(0.75, abs=0.05)
    assert {(each.prompt, each.output) for each in rest} == {(100, 200)}
    gaps = [b.seconds - a.seconds for a, b in pairwise(rest)]
    assert stdev(gaps) / fmean(gaps) == pytest.approx(0.5, rel=0.05)


def test_servegen_at_another_rate_and_of_several_clients(tmp_path: Path) -> None:
    folder = servegen(tmp_path / "parameters", WINDOWS)
    servegen(folder, "0,1.0,1.0,Weibull,1.0,1.0\n600,1.0,1.0,Weibull,1.0,1.0\n", "chunk-10")
    (folder / "chunk-4-trace.csv").write_text(WINDOWS)
    source = open_source(folder)
    assert source.notes == ["1 clients have no lengths and send nothing"]
    requests = list(source.requests(Pace(rate=13 / 3)))  # a third as much as 10 / 3 + 1
    assert len(requests) == pytest.approx(6000 + 1200, rel=0.05)
    assert [each.seconds for each in requests] == sorted(each.seconds for each in requests)
    assert {each.tenant for each in requests} == {"chunk-3", "chunk-10"}
    archive = tmp_path / "parameters.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, "data")
    assert list(open_source(archive).requests(Pace(limit=50))) == list(source.requests(Pace(limit=50)))


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ("", "it is empty"),
        ("0,2.0,1.0\n", "line 1 is '0,2.0,1.0', not six fields"),
        (WINDOWS + "900,2.0,1.0,Gamma,1.0,0.5\n", "line 4 is .*, no window after the one before"),
        ("0,2.0,1.0,Cauchy,1.0,0.5\n", "line 1 is .*, no window"),
        ("0,-2.0,1.0,Gamma,1.0,0.5\n", "line 1 is .*, no window"),
    ],
)
def test_parameters_that_are_none_are_named(windows: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"chunk-3-trace.csv in .*: {message}"):
        open_source(servegen(tmp_path / "parameters", windows))


def test_a_folder_without_clients_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no client"):
        open_source(tmp_path)
    folder = servegen(tmp_path / "parameters", WINDOWS)
    (folder / "chunk-3-dataset.json").write_text('{"0": {"input_tokens": "{}"}}')
    with pytest.raises(ConfigurationError, match=r"chunk-3-dataset.json in .*: it holds no lengths"):
        open_source(folder)
    (folder / "chunk-3-dataset.json").write_text('{"0": 3}')
    with pytest.raises(ConfigurationError, match=r"chunk-3-dataset.json in .*: no lengths by time"):
        open_source(folder)
