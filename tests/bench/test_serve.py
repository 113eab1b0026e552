"""The load over HTTP: against a server with known times, and against the real one."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from octavo.bench.serve.command import measure
from octavo.bench.serve.exchange import CONNECTION, CUT_OFF, STREAM, TIMEOUT, Target, split_url
from octavo.bench.serve.figures import figures, gaps, ttft
from octavo.bench.serve.load import Run, send_all
from octavo.bench.serve.server import read_counters
from octavo.bench.serve.workload import LengthRange, Planned, Workload
from octavo.cli.main import octavo as command
from octavo.core.errors import ConfigurationError
from tests.support.fake_server import running_real_server
from tests.support.models import rand_model
from tests.support.stream_server import Script, Seen, ending, event, stream_server, words


def target_of(seen: Seen, **fields: Any) -> Target:
    return replace(Target(*split_url(f"http://127.0.0.1:{seen.port}"), "fake"), **fields)


def plan(*seconds: float) -> list[Planned]:
    return [Planned(due, [number], 3) for number, due in enumerate(seconds)]


def test_each_event_counts_when_it_was_written() -> None:
    pauses = [0.05, 0.02, 0.08]
    with stream_server(Script(lambda index, body: words(pauses, prompt_tokens=7))) as seen:
        (answer,) = send_all(target_of(seen), plan(0.0)).answers
    assert answer.error is None
    assert (answer.num_prompt_tokens, answer.num_output_tokens) == (7, 3)
    assert ttft(answer) >= pauses[0]
    for came, written in zip(answer.token_times, seen.writes[0], strict=False):
        assert written <= came
    # A write is seen before the next one is made, however busy the machine is, unless it stands still for 20 ms.
    between = [after - before for before, after in pairwise(seen.writes[0][:3])]
    assert gaps(answer) == pytest.approx(between, abs=0.015)


SERVICE = 0.2
"""Seconds that the slow server takes for each answer, one after another."""


def slow(index: int, body: dict[str, Any]) -> list[tuple[float, bytes]]:
    return words([SERVICE])


def check_waits(run: Run, dues: Sequence[float]) -> None:
    """The n-th answer was there after n services, and counts from when its request was due."""
    for number, (answer, due) in enumerate(zip(run.answers, dues, strict=True)):
        assert answer.error is None
        assert answer.due == pytest.approx(run.start + due)
        assert ttft(answer) >= SERVICE * (number + 1) - due
    assert run.seconds >= SERVICE * len(dues)


def test_an_open_loop_waits_for_no_answer() -> None:
    dues = [0.0, 0.01, 0.02, 0.03]
    with stream_server(Script(slow, places=1)) as seen:
        run = send_all(target_of(seen), plan(*dues))
    check_waits(run, dues)
    assert seen.most_open == len(dues), "all were sent while the first was computed"
    assert all(came >= run.start + due for came, due in zip(seen.arrivals, dues, strict=True))


def test_what_waits_in_the_client_counts_as_well() -> None:
    dues = [0.0, 0.0, 0.0]
    with stream_server(Script(slow)) as seen:
        run = send_all(target_of(seen), plan(*dues), max_concurrency=1)
    assert seen.most_open == 1
    check_waits(run, dues)


def test_errors_by_kind() -> None:
    whole, cut = words([0.0]), [(0.0, event(" word"))]
    scripts: list[tuple[int, list[tuple[float, bytes]]]] = [
        (200, whole),
        (429, [(0.0, b"too many")]),
        (429, [(0.0, b"too many")]),
        (500, [(0.0, b"broken")]),
        (200, cut),
        (200, [*cut, (0.0, b'data: {"error": {"message": "died"}}\n\ndata: [DONE]\n\n')]),
        (200, [(0.0, b"data: no json\n\n")]),
        (200, [(5.0, b"late")]),
    ]
    script = Script(lambda index, body: scripts[body["prompt"][0]][1], lambda index: scripts[index][0])
    with stream_server(script) as seen:
        target = target_of(seen, timeout=1.0)
        # One after another, so that the server's numbers are those of the plan.
        run = send_all(target, plan(*[0.0] * len(scripts)), max_concurrency=1)
        unreachable = send_all(replace(target, port=1), plan(0.0))
    kinds = [None, "429", "429", "500", CUT_OFF, STREAM, STREAM, TIMEOUT]
    assert [answer.error for answer in run.answers] == kinds
    assert [answer.message for answer in run.answers[1:4]] == ["too many", "too many", "broken"]
    assert unreachable.answers[0].error == CONNECTION
    row = figures(1.0, run, {})
    assert (row["num_completed"], row["num_rejected"], row["num_errors"]) == (1, 2, 5)
    assert row["errors"] == {"429": 2, "500": 1, CUT_OFF: 1, STREAM: 2, TIMEOUT: 1}
    assert figures(1.0, unreachable, {})["ttft_p50"] is None


def test_events_in_pieces_and_several_at_once() -> None:
    chat = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\r\n\r\n'
    said = b'data: {"choices":[{"delta":{"content":"a"}}]}\r\n\r\n'
    parts = [(0.0, chat + said[:20]), (0.02, said[20:] + said + said[:-1]), (0.02, b"\n: ping\n\n" + ending(5, 9))]
    with stream_server(Script(lambda index, body: parts)) as seen:
        target = target_of(seen, endpoint="chat", api_key="key", ignore_eos=False)
        (answer,) = send_all(target, [Planned(0.0, "hello", 9)]).answers
    assert answer.error is None
    first, second, third = answer.token_times
    assert first == second <= third
    assert (answer.num_prompt_tokens, answer.num_output_tokens) == (5, 9)
    (body,) = seen.bodies
    assert body["path"] == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    assert "Authorization: Bearer key\r\n" in body["head"]
    assert "ignore_eos" not in body


def page(queries: int, hits: int, preemptions: int) -> str:
    counts = {"prefix_cache_queries": queries, "prefix_cache_hits": hits, "num_preemptions": preemptions}
    return "".join(
        f'# TYPE vllm:{name}_total counter\nvllm:{name}_total{{engine="{engine}"}} {count}\n'
        for name, count in counts.items()
        for engine in range(2)
    )


def test_counters_of_the_server_before_and_after() -> None:
    script = Script(lambda index, body: words([0.0]), metrics=[page(100, 50, 1), page(140, 60, 4)])
    workload = Workload(num_prompts=2, input_len=LengthRange(2, 2), output_len=LengthRange(1, 1))
    with stream_server(script) as seen:
        rows, _ = measure(target_of(seen), workload, [float("inf")], {})
        assert read_counters(target_of(seen)) is None, "404"
        without, _ = measure(target_of(seen), workload, [float("inf")], {})
    assert (rows[0]["prefix_hit_percent"], rows[0]["num_preemptions"]) == (25.0, 6)  # of both engines
    assert (without[0]["prefix_hit_percent"], without[0]["num_preemptions"]) == (None, None)


def run_command(*flags: str) -> Any:
    return CliRunner().invoke(command, ["bench", "serve", *flags])


def test_no_server_and_a_refusal_are_one_sentence() -> None:
    result = run_command("--base-url", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert result.output.startswith("Error: no server answers at 127.0.0.1:1")
    with stream_server(Script(lambda index, body: [(0.0, b"no such model")], lambda index: 404)) as seen:
        result = run_command("--base-url", f"http://127.0.0.1:{seen.port}/v1/")
    assert result.exit_code == 1
    assert "failed (404): no such model" in result.output
    assert seen.bodies[0]["model"] == "listed"


@pytest.mark.parametrize("flag", ["--request-rate=0", "--input-len=9-3", "--goodput=ttfb:1", "--slo=ttft"])
def test_flags_that_make_no_sense(flag: str) -> None:
    assert run_command(flag).exit_code == 2


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://here", "http://here:port", "http://[::1"])
def test_addresses_that_make_no_sense(url: str) -> None:
    with pytest.raises(ConfigurationError, match="--base-url"):
        split_url(url)


def test_addresses() -> None:
    assert split_url("http://here:1")[:3] == split_url("http://here:1/v1/")[:3] == ("here", 1, "/v1")
    host, port, path, tls = split_url("https://there/api")
    assert (host, port, path) == ("there", 443, "/api/v1")
    assert tls is not None


def test_a_server_that_has_nothing_but_completions(tmp_path: Path) -> None:
    """No usage, no metrics, no last event, other fields and comments: as other engines' servers are."""

    def parts(_index: int, body: dict[str, Any]) -> list[tuple[float, bytes]]:
        assert "ignore_eos" not in body
        chunk = {"id": "x", "object": "text_completion", "usage": None, "choices": [{"index": 0, "text": "a"}]}
        last = {"choices": [{"index": 0, "text": None, "finish_reason": "length", "logprobs": None}]}
        events = (f"data: {json.dumps(each)}\r\n\r\n".encode() for each in (chunk, chunk, chunk, last))
        return [(0.0, b": hello\r\n\r\n"), *((0.0, event) for event in events)]

    figures_file = tmp_path / "figures.json"
    with stream_server(Script(parts)) as seen:
        address = ("--base-url", f"http://127.0.0.1:{seen.port}", "--model", "theirs", "--no-ignore-eos")
        result = run_command(*address, "--request-rates", "50,inf", "--num-prompts", "3", "--json", str(figures_file))
    assert result.exit_code == 0, result.output
    assert "50 requests/s" in result.output
    for row in json.loads(figures_file.read_text())["figures"]["serve"]:
        assert (row["num_completed"], row["output_tokens"], row["prompt_tokens"]) == (3, 9, 0)
        assert (row["prefix_hit_percent"], row["num_preemptions"]) == (None, None)


@pytest.mark.slow
def test_the_real_server(tmp_path: Path) -> None:
    model = rand_model(tmp_path / "model")
    figures_file, picture = tmp_path / "figures.json", tmp_path / "picture.svg"
    with running_real_server(model, "--num-blocks", "200") as server:
        server.wait_ready()
        result = run_command(
            *("--base-url", server.url, "--request-rates", "20,inf", "--num-prompts", "6", "--vocab-size", "200"),
            *("--input-len", "3-9", "--output-len", "4", "--shared-prefix-len", "32", "--goodput", "ttft:60000 itl:1"),
            *("--slo", "itl:60000", "--json", str(figures_file), "--plot", str(picture)),
        )
        assert result.exit_code == 0, result.output
        chat = run_command("--base-url", server.url, "--endpoint", "chat", "--num-prompts", "2", "--output-len", "3")
        assert chat.exit_code == 0, chat.output
    rows = json.loads(figures_file.read_text())["figures"]["serve"]
    assert [row["request_rate"] for row in rows] == [20, "inf"]
    for row in rows:
        assert (row["num_completed"], row["num_errors"], row["num_rejected"]) == (6, 0, 0)
        assert row["output_tokens"] == 24
        assert 6 * (32 + 3) <= row["prompt_tokens"] <= 6 * (32 + 9)
        assert row["goodput_share"] == 1.0
        assert row["goodput"] == row["requests_per_second"] == pytest.approx(6 / row["seconds"])
        assert row["num_preemptions"] == 0
        assert 0 < row["ttft_p50"] <= row["ttft_p99"] <= row["e2el_p99"] <= 1e3 * row["seconds"]
    assert rows[0]["prefix_hit_percent"] > 50, "all but the first find the shared prefix"
    assert "TTFT p99, ms" in result.output
    assert "<svg " in picture.read_text()
