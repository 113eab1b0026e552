"""How long requests may take, over HTTP: headers, fields, settings, and what their clients are told."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from typing import Any

import httpx
import openai
import pytest

from tests.support.fake_server import ServerProcess, running_real_server, running_server
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.parity import random_ids
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """One place, 20 tokens a second."""
    with running_server({"step_seconds": 0.05, "max_num_seqs": 1}) as running:
        yield running.wait_ready()


@pytest.fixture(autouse=True)
def everything_comes_back(server: ServerProcess) -> Iterator[None]:
    yield
    for gauge in ("octavo:queued_requests", "octavo:queued_tokens", "vllm:num_requests_running"):
        wait_until(lambda gauge=gauge: not server.metric(gauge), gauge)
    assert server.metric("vllm:num_requests_waiting") == 0


def post(server: ServerProcess, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    with server.client(**(headers or {})) as client:
        return client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1} | fields)


def wait_for_metric(server: ServerProcess, name: str, value: float, **labels: str) -> None:
    """The engine counts what it ends after the step that it is in."""
    wait_until(lambda: server.metric(name, **labels) == value, name)


@contextmanager
def busy(server: ServerProcess) -> Iterator[None]:
    body = {"prompt": "x", "max_tokens": 500, "stream": True}
    with server.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        yield


MESSAGES = [{"role": "user", "content": "x"}]
LATE = [({"X-Request-Timeout-Ms": "300"}, {}), ({}, {"request_timeout_ms": 300})]


@pytest.mark.parametrize(("headers", "fields"), LATE)
@pytest.mark.parametrize("n", [1, 3])
def test_a_deadline_while_it_runs(
    server: ServerProcess, headers: dict[str, str], fields: dict[str, int], n: int
) -> None:
    before = server.metric("octavo:requests_timed_out_total", bound="deadline")
    answer = post(server, headers, max_tokens=200, n=n, **fields)
    assert answer.status_code == 504
    assert answer.headers["X-Should-Retry"] == "false"
    assert answer.json()["error"] == {
        "message": "The request's time is over: it is not finished after 0.3 s and may take 0.3 s.",
        "type": "timeout_error",
        "param": None,
        "code": "deadline_exceeded",
    }
    wait_for_metric(server, "octavo:requests_timed_out_total", before + 1, bound="deadline")


def test_a_deadline_in_a_stream_is_an_error_event_and_no_done(server: ServerProcess) -> None:
    body = {"messages": MESSAGES, "stream": True, "request_timeout_ms": 400}
    with server.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        events = [line for line in response.iter_lines() if line]
    assert len(events) > 3
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "deadline_exceeded"


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_the_time_in_which_a_new_form_is_tried_counts(path: str) -> None:
    """For which a process has to start, the first time."""
    fields: dict[str, Any] = {"prompt": "x"} if path == "completions" else {"messages": MESSAGES}
    fields |= {"max_tokens": 1, "guided_regex": "a"}
    with running_server() as running, running.wait_ready().client() as client:
        late = client.post(f"/v1/{path}", json=fields | {"request_timeout_ms": 100})
        assert (late.status_code, late.json()["error"]["type"]) == (504, "timeout_error")
        assert client.post(f"/v1/{path}", json=fields | {"request_timeout_ms": 5000}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_while_it_waits(server: ServerProcess, stream: bool) -> None:
    with busy(server):
        answer = post(server, request_timeout_ms=200, stream=stream)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("headers", "fields"), [({"X-SLO-TTFT-Ms": "200"}, {}), ({}, {"slo_ttft_ms": 200})])
def test_one_that_waits_too_long(
    server: ServerProcess, stream: bool, headers: dict[str, str], fields: dict[str, int]
) -> None:
    with busy(server):
        answer = post(server, headers, stream=stream, **fields)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_timeout")
    assert 1 <= int(answer.headers["Retry-After"]) <= 60


def test_started_in_time_is_not_ended(server: ServerProcess) -> None:
    answer = post(server, slo_ttft_ms=300, max_tokens=20)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 20


def test_the_stricter_counts(server: ServerProcess) -> None:
    start = time.monotonic()
    assert post(server, {"X-Request-Timeout-Ms": "200"}, request_timeout_ms=60000, max_tokens=300).status_code == 504
    assert post(server, {"X-Request-Timeout-Ms": "60000"}, request_timeout_ms=200, max_tokens=300).status_code == 504
    assert time.monotonic() - start < 5.0


NO_NUMBERS = ("nan", "inf", "infinity", "1e400", "1e309", "1e3", "+1", "-5", "1_000", "0x10", ".5", "5.", "1,5", "5 6")
TOO_LARGE_OR_SMALL = ("0", "0.0", "1000000000000.1", "9" * 400)


@pytest.mark.parametrize("value", [*NO_NUMBERS, *TOO_LARGE_OR_SMALL, "soon", "", "\xb2", "1\xa0"])
@pytest.mark.parametrize("name", ["x-slo-ttft-ms", "x-request-timeout-ms"])
def test_headers_that_are_no_times(server: ServerProcess, name: str, value: str) -> None:
    with server.client() as client:
        headers = [(name.encode(), value.encode("latin-1"))]
        answer = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name


@pytest.mark.parametrize("name", ["x-slo-ttft-ms", "x-request-timeout-ms"])
def test_headers_that_are_times(server: ServerProcess, name: str) -> None:
    for value in ("60000", "  60000\t ", "007000", "5000.25", "1000000000000"):
        with closing(
            HTTPConnection(server.url.removeprefix("http://"), timeout=10.0)
        ) as connection:  # httpx sends no tabs
            connection.request("POST", "/v1/completions", b'{"prompt": "x", "max_tokens": 1}', {name: value})
            assert connection.getresponse().status == 200


def test_a_header_that_comes_twice(server: ServerProcess) -> None:
    with server.client() as client:
        headers = [("X-SLO-TTFT-Ms", "60000"), ("x-slo-ttft-ms", "50000")]
        answer = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-slo-ttft-ms")


@pytest.mark.parametrize("value", [0, -1, 1e300, "soon", True, []])
@pytest.mark.parametrize("name", ["slo_ttft_ms", "request_timeout_ms"])
def test_fields_that_are_no_times(server: ServerProcess, name: str, value: Any) -> None:
    answer = post(server, **{name: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name


def test_openai_clients_do_not_repeat_what_had_its_time(server: ServerProcess) -> None:
    before = server.metric("octavo:requests_timed_out_total", bound="deadline")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=3)
    with client, pytest.raises(openai.InternalServerError, match="time is over"):
        client.completions.create(model="fake", prompt="x", max_tokens=300, extra_body={"request_timeout_ms": 100})
    wait_for_metric(server, "octavo:requests_timed_out_total", before + 1, bound="deadline")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_the_answer_comes_at_the_time_itself(stream: bool, n: int) -> None:
    """However long a step takes. What waits behind it, and what runs in it, is freed when it is over."""
    with running_server({"step_seconds": 3.0, "max_num_seqs": 1}) as server, ThreadPoolExecutor(1) as pool:
        server.wait_ready()
        start = time.monotonic()
        runs = pool.submit(post, server, request_timeout_ms=500, max_tokens=9, n=n, stream=stream)
        while not server.metric("octavo:queued_requests") < n:
            time.sleep(0.01)
        waits = post(server, slo_ttft_ms=300)
        assert (waits.status_code, runs.result().status_code) == (429, 504)
        assert time.monotonic() - start < 2.0
        wait_for_metric(server, "octavo:requests_timed_out_total", 1, bound="deadline")
        wait_for_metric(server, "octavo:requests_timed_out_total", 1, bound="queue")


def test_the_servers_own_times() -> None:
    times = {"max_queue_seconds": 0.4, "max_request_seconds": 3.0}
    with running_server({"step_seconds": 0.05, "max_num_seqs": 1}, **times) as server:
        server.wait_ready()
        with busy(server):
            waited = post(server)
        assert (waited.status_code, waited.json()["error"]["code"]) == (429, "queue_timeout")
        assert post(server, max_tokens=300).status_code == 504
        assert post(server, max_tokens=300, request_timeout_ms=60000).status_code == 504  # no more than the server's


def test_what_could_not_start_in_time_is_refused_at_once() -> None:
    """Requests of half a second each leave the queue; behind four of them a new one waits two seconds."""
    with running_server({"step_seconds": 0.05, "max_num_seqs": 1}) as server, ThreadPoolExecutor(8) as pool:
        server.wait_ready()
        prompt = [120] * 10
        first = [pool.submit(post, server, prompt=prompt, max_tokens=10) for _ in range(8)]
        wait_until(lambda: server.metric("octavo:queued_requests") == 4)
        answer = post(server, prompt=prompt, slo_ttft_ms=400)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_slow")
        assert "its first token would come after" in answer.json()["error"]["message"]
        assert server.metric("octavo:requests_rejected_total", reason="queue_slow") == 1
        assert post(server, prompt=prompt, slo_ttft_ms=30000).status_code == 200
        assert [each.result().status_code for each in first] == [200] * 8


@pytest.mark.slow
def test_whatever_ends_by_its_time_frees_everything(tmp_path: Path) -> None:
    """A real engine with little memory: requests of all kinds end in line, in their prompts, decoding and preempted."""
    flags = ("--num-blocks", "40", "--max-model-len", "512", "--max-num-seqs", "4", "--max-num-batched-tokens", "16")
    more = ("--max-queue-seconds", "2", "--preemption-mode", "swap", "--swap-space", "0.01", "--threads", "1")
    with running_real_server(rand_model(tmp_path), *flags, *more) as server, ThreadPoolExecutor(12) as pool:
        server.wait_ready()
        random = Random(0)
        kinds: list[dict[str, Any]] = [{}, {"stream": True}, {"n": 3}, {"use_beam_search": True, "n": 2}]
        asked = [
            kinds[number % 4]
            | {"prompt": random_ids(random.randint(5, 200), RAND_VOCAB, seed=number % 5), "ignore_eos": True}
            | {"temperature": 0, "max_tokens": random.randint(20, 100), "request_timeout_ms": random.uniform(20, 1500)}
            for number in range(28)
        ]
        answers = [future.result() for future in [pool.submit(post, server, **fields) for fields in asked]]
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) <= {200, 429, 504}
        for answer, fields in zip(answers, asked, strict=True):
            if fields.get("stream") and answer.status_code == 200:
                assert ("[DONE]" in answer.text) != ('"code":"deadline_exceeded"' in answer.text)
        assert 504 in statuses
        assert post(server).status_code == 200
        for gauge in ("octavo:queued_requests", "octavo:queued_tokens", "octavo:swapped_blocks"):
            assert server.metric(gauge) == 0
        assert server.metric("octavo:kv_blocks", state="active") == 0
        assert server.metric("vllm:num_requests_running") == server.metric("vllm:num_requests_waiting") == 0
