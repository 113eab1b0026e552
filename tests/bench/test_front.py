"""The benchmark of the server: every token arrives, in order and in an event of its own, and a lost one is noticed."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from octavo.bench.front.cases import CASES, Case, by_server
from octavo.bench.front.engine import word
from octavo.bench.front.load import events_of, words_of
from octavo.bench.front.measure import Background, Cores, first_events, limit, throughput
from octavo.cli.main import octavo as command
from octavo.core.errors import ConfigurationError

NUM_STREAMS, NUM_TOKENS = 4, 100
PLAIN = by_server(list(CASES.values()))[0]


@pytest.fixture
def cores() -> Cores:
    usable = sorted(os.sched_getaffinity(0))
    return Cores(usable[0], usable[-1])


@pytest.mark.slow
@pytest.mark.parametrize("cases", [PLAIN, [CASES["chat, a long tool call"]]], ids=lambda cases: cases[-1].name)
def test_one_event_a_token(cores: Cores, cases: list[Case]) -> None:
    rows = throughput(cases, cores, NUM_STREAMS, NUM_TOKENS)
    assert [(row["what"], row["events_per_token"]) for row in rows] == [(case.name, 1.0) for case in cases]
    for row in rows:
        per_second, of_cpu = row["tokens_per_second"], row["tokens_per_cpu_second"]
        assert isinstance(per_second, float)
        assert isinstance(of_cpu, float)
        assert 0 < per_second <= of_cpu * 1.05, "one core, less what it waited"


def test_the_limit(cores: Cores) -> None:
    assert limit(cores, NUM_STREAMS, 4000)["events_per_token"] == 1.0


def test_first_events(cores: Cores) -> None:
    alone, beside = first_events(CASES["completions"], cores, [Background(0, 1.0), Background(2, 200.0)], 3)
    for found in (alone, beside):
        assert len(found.seconds) == 3
        assert min(found.seconds) > 0


def chunked(*events: bytes) -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def test_what_came_is_read_and_what_did_not_is_missed() -> None:
    events = [f'data: {{"text": "{word(number)}"}}\n\n'.encode() for number in range(3)]
    assert words_of(events_of(chunked(*events))) == ([0, 1, 2], 3)
    assert words_of(events_of(chunked(events[0], events[2] + events[1]))) == ([0, 2, 1], 3)
    joined = f"data: {word(0)}{word(1)}\n\n".encode()
    assert words_of(events_of(chunked(joined))) == ([0, 1], 1)
    with pytest.raises(ConfigurationError, match="did not stream"):
        events_of(chunked(*events)[:-5])


def test_the_command(tmp_path: Path) -> None:
    found = tmp_path / "front.json"
    arguments = ["bench", "front", "--case", "chat", "--num-streams", "2", "--num-tokens", "2000", "--repeats", "2"]
    usable = os.sched_getaffinity(0)
    try:
        shown = CliRunner().invoke(command, [*arguments, "--json", str(found)])
    finally:
        os.sched_setaffinity(0, usable)
    if len(usable) < 2:
        assert isinstance(shown.exception, ConfigurationError)
        return
    assert shown.exit_code == 0, shown.output
    figures = json.loads(found.read_text())["figures"]
    assert [row["what"] for row in figures["front"]] == ["chat", "a bare server, constant events"]
    assert [row["what"] for row in figures["first_events"]] == ["chat, alone", "chat, beside 8,000 tokens/s"]
