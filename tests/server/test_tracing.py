"""``--otlp-traces-endpoint``: the tree of spans of each kind of request, as a collector gets it; and a collector that
is slow, gone or in error, which no request notices."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.core.errors import ConfigurationError
from octavo.engine.messages import RequestTimes
from octavo.engine.traces import RequestEvent, RequestFacts, RequestTrace
from octavo.server.tracing import sender as sender_module
from octavo.server.tracing.ended import EndedRequest
from octavo.server.tracing.exporter import SpanExporter, traces_url
from octavo.server.tracing.sender import SpanSender
from octavo.server.tracing.tree import Span, span_tree
from tests.support.fake_server import ROOT, ServerProcess, running_real_server, running_server
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.otlp import Collector, collector
from tests.support.parity import random_ids
from tests.support.waiting import wait_until

SERVER, INTERNAL = 2, 1
"""Kinds of spans, as in the protocol."""

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture(scope="module")
def spans() -> Iterator[Collector]:
    with collector() as running:
        yield running


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, spans: Collector) -> Iterator[ServerProcess]:
    """A pool that two long answers overfill."""
    model: Path = rand_model(tmp_path_factory.mktemp("rand"), max_position_embeddings=2048)
    flags = ["--num-blocks", "80", "--block-size", "4", "--max-num-batched-tokens", "32", "--max-num-seqs", "8"]
    flags += ["--preemption-mode", "recompute", "--admission-quantile", "0", "--threads", "1"]
    flags += ["--max-model-len", "300", "--otlp-traces-endpoint", spans.url]
    with running_real_server(model, *flags) as running:
        yield running.wait_ready(60.0)


def complete(server: ServerProcess, name: str, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    body = {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0, "ignore_eos": True} | fields
    with server.client() as client:
        return client.post("/v1/completions", json=body, headers={"X-Request-Id": name} | (headers or {}))


def check_nested(root: Any) -> None:
    for child in root.children:
        assert root.start <= child.start <= child.end <= root.end
        assert child.trace_id == root.trace_id
        assert child.kind == INTERNAL


def test_a_plain_request(traced: ServerProcess, spans: Collector) -> None:
    answer = complete(traced, "plain", prompt=random_ids(70, RAND_VOCAB, seed=1))
    root = spans.root("plain")
    assert (root.name, root.kind, root.parent_id, root.is_error) == ("llm_request", SERVER, "", False)
    assert root.shape == ["queue", "prefill", "decode"]
    check_nested(root)
    queue, prefill, decode = root.children
    assert (queue.start, queue.end, prefill.end) == (root.start, prefill.start, decode.start)
    assert [(name, each["octavo.tokens"]) for name, each in prefill.events] == [
        ("admitted", 32),
        ("chunk", 32),
        ("chunk", 6),
    ]
    expected = {
        "gen_ai.request.id": answer.json()["id"],
        "gen_ai.request.model": "fake",
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.n": 1,
        "gen_ai.usage.prompt_tokens": 70,
        "gen_ai.usage.completion_tokens": 4,
        "gen_ai.usage.num_sequences": 1,
        "gen_ai.response.finish_reasons": ["length"],
        "octavo.cached_tokens": 0,
    }
    assert {name: root.attributes[name] for name in expected} == expected
    latency = {name.rpartition(".")[2]: value for name, value in root.attributes.items() if ".latency." in name}
    assert 0 < latency["time_in_queue"] < latency["time_to_first_token"] < latency["e2e"]
    inference = latency["time_in_model_prefill"] + latency["time_in_model_decode"]
    assert latency["time_in_model_inference"] == pytest.approx(inference)
    assert latency["e2e"] == pytest.approx((root.end - root.start) / 1e9, abs=1e-5)
    assert spans.resources[-1]["service.name"] == "octavo"


def test_a_streamed_request_of_two_choices_in_the_trace_of_its_client(traced: ServerProcess, spans: Collector) -> None:
    headers = {"traceparent": TRACEPARENT, "tracestate": "vendor=x"}
    answer = complete(traced, "two", headers, n=2, stream=True, prompt=random_ids(20, RAND_VOCAB, seed=2))
    assert answer.text.endswith("data: [DONE]\n\n")
    root = spans.root("two")
    assert (root.trace_id, root.parent_id) == (TRACE, PARENT)
    assert root.shape == ["queue", "prefill", "decode"] * 2
    assert [child.attributes["octavo.choice"] for child in root.children] == [0, 0, 0, 1, 1, 1]
    check_nested(root)
    assert root.attributes["gen_ai.usage.num_sequences"] == 2
    assert root.attributes["gen_ai.response.finish_reasons"] == ["length", "length"]
    assert root.attributes["gen_ai.usage.completion_tokens"] == 8
    assert "forked" in [name for name, _ in root.children[4].events]


@pytest.mark.parametrize(
    "bad", ["nonsense", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01", f"00-{TRACE}-01", "x" * 5000]
)
def test_a_bad_traceparent_is_ignored(traced: ServerProcess, spans: Collector, bad: str) -> None:
    name = f"bad-{len(bad)}-{bad[:2]}"
    assert complete(traced, name, {"traceparent": bad, "tracestate": "==,"}).status_code == 200
    root = spans.root(name)
    assert root.parent_id == ""
    assert root.trace_id != TRACE


def test_who_is_not_sampled_by_its_client_sends_nothing(traced: ServerProcess, spans: Collector) -> None:
    complete(traced, "unsampled", {"traceparent": f"00-{TRACE}-{PARENT}-00"})
    complete(traced, "after")
    spans.root("after")
    assert "unsampled" not in [root.attributes["octavo.x_request_id"] for root in spans.roots()]


def test_a_preempted_request(traced: ServerProcess, spans: Collector) -> None:
    """Three answers of 200 tokens do not fit in 320 slots."""
    with ThreadPoolExecutor(3) as pool:
        answers = pool.map(
            lambda index: complete(traced, f"long-{index}", prompt=[index] * 20, max_tokens=200), range(5, 8)
        )
        assert [answer.status_code for answer in answers] == [200] * 3
    roots = [spans.root(f"long-{index}") for index in range(5, 8)]
    preempted = next(root for root in roots if "preempted" in root.shape)
    check_nested(preempted)
    span = next(child for child in preempted.children if child.name == "preempted")
    assert span.attributes["octavo.freed_blocks"] > 0
    assert span.attributes["octavo.choice"] == 0
    assert "octavo.kept_tokens" in span.attributes, "it went on"
    decode = next(child for child in preempted.children if child.name == "decode")
    assert decode.start <= span.start < span.end <= decode.end
    assert preempted.attributes["gen_ai.usage.completion_tokens"] == 200


def test_an_aborted_request(traced: ServerProcess, spans: Collector) -> None:
    body = {"prompt": [1, 2, 3], "max_tokens": 290, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{traced.url}/v1/completions", json=body, headers={"X-Request-Id": "gone"}) as answer:
        next(answer.iter_lines())
    root = spans.root("gone")
    assert root.shape == ["queue", "prefill", "decode"]
    assert root.attributes["gen_ai.response.finish_reasons"] == ["abort"]
    assert 0 < root.attributes["gen_ai.usage.completion_tokens"] < 290
    assert not root.is_error


def test_refused_requests(traced: ServerProcess, spans: Collector) -> None:
    """Before the engine, and at its door."""
    assert complete(traced, "early", temperature=-1, headers={"traceparent": TRACEPARENT}).status_code == 400
    assert complete(traced, "door", max_tokens=10**6).status_code == 400
    early, door = spans.root("early"), spans.root("door")
    for root in (early, door):
        assert (root.name, root.is_error, root.shape) == ("llm_request", True, [])
    assert (early.attributes["error.type"], early.attributes["http.response.status_code"]) == ("invalid_request", 400)
    assert (early.trace_id, early.parent_id) == (TRACE, PARENT)
    assert door.attributes["error.type"] == "context_length_exceeded"
    assert door.attributes["gen_ai.usage.prompt_tokens"] == 3


def test_a_request_whose_time_is_over(traced: ServerProcess, spans: Collector) -> None:
    answer = complete(traced, "late", request_timeout_ms=1, prompt=random_ids(200, RAND_VOCAB, seed=3), max_tokens=90)
    assert answer.status_code == 504
    root = spans.root("late")
    assert root.is_error
    assert root.attributes["error.type"] in ("timed_out", "deadline_exceeded")


def test_variables_of_opentelemetry_count(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "OTEL_SERVICE_NAME": "mine",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-token=secret",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with collector() as spans, running_server(otlp_traces_endpoint=f"{spans.url}/v1/traces") as server:
        server.wait_ready()
        assert complete(server, "mine").status_code == 200
        assert spans.root("mine").shape == ["queue", "prefill", "decode"]
        assert spans.resources[0]["service.name"] == "mine"
        assert spans.resources[0]["deployment.environment"] == "test"
        assert (spans.headers[0]["x-token"], spans.headers[0]["content-encoding"]) == ("secret", "gzip")
        assert "secret" not in server.log


def test_what_ends_just_before_the_server_is_still_sent() -> None:
    with collector() as spans, running_server(otlp_traces_endpoint=spans.url) as server:
        server.wait_ready()
        assert complete(server, "last").status_code == 200
        server.process.terminate()
        assert server.wait_exit() == 0
        assert spans.root("last").name == "llm_request"


def test_no_request_waits_for_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow, in error, and gone: answers come as ever, and the log says how many are lost."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with collector() as spans, running_server(otlp_traces_endpoint=spans.url) as server:
        server.wait_ready()
        spans.seconds = 5.0
        started = time.monotonic()
        for number in range(20):
            assert complete(server, f"slow-{number}").status_code == 200
        assert time.monotonic() - started < 5.0
        wait_until(lambda: "did not get to" in server.log)
    assert f"did not get to {spans.url}/v1/traces: " in server.log


def test_a_collector_that_is_gone_ends_nothing() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with running_server(otlp_traces_endpoint=url, shutdown_timeout=1.0) as server:
            server.wait_ready()
            for number in range(5):
                assert complete(server, f"gone-{number}").status_code == 200
            server.process.terminate()
            assert server.wait_exit() == 0
    assert "Spans of 5 requests did not get to" in server.log


def test_without_the_flag_nothing_of_it_is_loaded() -> None:
    code = "import sys, octavo.server.run; sys.exit(any(name.startswith('opentelemetry.sdk') for name in sys.modules))"
    environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=environment)


def test_bad_headers_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    exporter = SpanExporter("http://127.0.0.1:9")
    root = Span("llm_request", 1.0, 2.0, {})
    for traceparent, tracestate in (("x" * 1000, ""), (f"00-{'1' * 32}-{'1' * 16}-01", "a=1,a=2,,=," + "b" * 1000)):
        exporter.add(root, traceparent, tracestate)
    assert caplog.messages == []


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert traces_url("http://c:4318") == "http://c:4318/v1/traces"
    assert traces_url("https://c/") == "https://c/v1/traces"
    assert traces_url("https://c/otlp/x") == "https://c/otlp/x"
    for bad in ("c:4318", "ftp://c", "http://", "http://c:99999", "grpc://c:4317"):
        with pytest.raises(ConfigurationError, match="is no address"):
            traces_url(bad)
    for keyed in ("http://user:secret@c", "http://c/v1/traces?key=secret"):
        with pytest.raises(ConfigurationError, match="holds a key") as caught:
            traces_url(keyed)
        assert "secret" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(ConfigurationError, match="with its extra otel"):
        SpanExporter("http://c")


class FakeExporter:
    """``reason``: why what is sent does not arrive; ``sent``: names of batches that did."""

    url = "http://c"

    def __init__(self) -> None:
        self.reason: str | None = None
        self.sent: list[int] = []
        self._added = 0

    def add(self, tree: Span, traceparent: str, tracestate: str) -> None:
        self._added += 1

    def send(self) -> str | None:
        added, self._added = self._added, 0
        if self.reason is None:
            self.sent.append(added)
        return self.reason

    def stop(self) -> None: ...


ENDED = EndedRequest("a", "mine", 1.0, 9.0, "", "", times=(RequestTimes("a", 0, 1.0, 2.0, 3.0, 9.0, 5, 6, "stop"),))


def test_what_waits_to_be_sent_is_bounded_and_the_lost_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sender_module, "MAX_PENDING", 5)
    exporter = FakeExporter()
    sender = SpanSender(exporter, "m", clock=lambda: 100.0)
    with sender._backlog._news:  # what the thread waits for
        sender.put([(ENDED, None)] * 4)
        sender.put([(ENDED, None)] * 4)
        sender.lose()
    wait_until(lambda: exporter.sent == [5])
    wait_until(
        lambda: "Spans of 4 requests did not get to http://c: more came than could be kept up with" in caplog.text
    )
    exporter.reason = "no route"
    for _ in range(3):
        sender.put([(ENDED, None)])
    sender.close(5.0)
    assert caplog.text.count("did not get to") == 2, "not a line for each"
    assert "Spans of 3 requests did not get to http://c: no route" in caplog.text


def trace(*events: RequestEvent, num_dropped: int = 0) -> RequestTrace:
    return RequestTrace("a", RequestFacts(1.0, 5, 1), list(events), num_dropped, [], 6, "stop")


def test_a_tree_without_what_the_engine_knew() -> None:
    root = span_tree(ENDED, None, "m")
    assert [child.name for child in root.children] == ["queue", "prefill", "decode"]
    waiting = EndedRequest(
        "a", "mine", 1.0, 9.0, "", "", times=(RequestTimes("a", 0, 1.0, None, None, 9.0, 5, 0, "abort"),)
    )
    (queue,) = span_tree(waiting, trace(num_dropped=7), "m").children
    assert (queue.name, queue.start, queue.end) == ("queue", 1.0, 9.0)
    assert span_tree(waiting, trace(num_dropped=7), "m").attributes["octavo.dropped_events"] == 7


def test_a_choice_that_was_preempted_twice_and_did_not_go_on() -> None:
    events = [
        RequestEvent(1.5, 1, 0, "passed", (1, 1)),
        RequestEvent(2.0, 2, 0, "admitted", (0, 5)),
        RequestEvent(4.0, 3, 0, "preempted", (1, 2, 3), "for another"),
        RequestEvent(5.0, 4, 0, "resumed", (2, 4)),
        RequestEvent(5.5, 5, 0, "chunk", (4, 3)),
        RequestEvent(6.0, 6, 0, "preempted", (4, 5, 6)),
    ]
    root = span_tree(ENDED, trace(*events), "m")
    assert [event.name for event in root.events] == ["passed"]
    _, prefill, first, second, decode = root.children
    assert [(span.start, span.end) for span in (first, second)] == [(4.0, 5.0), (6.0, 9.0)]
    assert first.attributes == {
        "octavo.choice": 0,
        "octavo.freed_blocks": 1,
        "octavo.swapped_tokens": 2,
        "octavo.lost_tokens": 3,
        "octavo.kept_tokens": 2,
        "octavo.tokens": 4,
    }
    assert [event.name for event in prefill.events] == ["admitted"]
    assert [event.name for event in decode.events] == ["chunk"]
