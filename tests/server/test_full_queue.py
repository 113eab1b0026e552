"""A full queue over HTTP: bursts, what is counted, and that every place comes back (D24)."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import islice
from typing import Any

import httpx
import pytest

from tests.support.fake_server import ServerProcess, running_server
from tests.support.waiting import wait_until

QUEUED = {"max_num_queued_reqs": 4, "max_num_queued_tokens": 40}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """One place, 20 tokens a second; a token is a byte."""
    with running_server({"step_seconds": 0.05, "max_num_seqs": 1}, **QUEUED) as running:
        yield running.wait_ready()


@pytest.fixture(autouse=True)
def everything_comes_back(server: ServerProcess) -> Iterator[None]:
    yield
    wait_for(server, "octavo:queued_requests", 0)
    assert server.metric("octavo:queued_tokens") == 0
    wait_for(server, "vllm:num_requests_running", 0)
    assert server.metric("vllm:num_requests_waiting") == 0


def wait_for(server: ServerProcess, gauge: str, value: float) -> None:
    wait_until(lambda: server.metric(gauge) == value, gauge)


def post(server: ServerProcess, **fields: Any) -> httpx.Response:
    with server.client() as client:
        return client.post("/v1/completions", json={"prompt": [120], "max_tokens": 1} | fields)


@contextmanager
def busy(server: ServerProcess) -> Iterator[None]:
    """One request runs meanwhile; nothing else does."""
    body = {"prompt": "x", "max_tokens": 500, "stream": True}
    with server.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()  # once nobody holds these, the connection is closed
        next(lines)
        yield


def rejected(server: ServerProcess) -> float:
    return server.metric("octavo:requests_rejected_total", reason="queue_full")


def assert_refused(answer: httpx.Response, message: str) -> None:
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    assert answer.json()["error"] == {
        "message": message,
        "type": "rate_limit_error",
        "param": None,
        "code": "queue_full",
    }


def test_a_burst_fills_the_queue_and_no_more(server: ServerProcess) -> None:
    with ThreadPoolExecutor(24) as pool:
        with busy(server):
            answers = [pool.submit(post, server) for _ in range(24)]
            done = list(islice(as_completed(answers, 20.0), 20))
            assert server.metric("octavo:queued_requests") == server.metric("octavo:queued_tokens") == 4
            assert rejected(server) >= 20
            for answer in done:
                assert_refused(answer.result(), "4 requests are queued; the limit is 4.")
        served = [answer.result() for answer in answers if answer not in done]
    assert [answer.status_code for answer in served] == [200] * 4


def test_choices_and_prompts_count(server: ServerProcess) -> None:
    with ThreadPoolExecutor(2) as pool, busy(server):
        choices = pool.submit(post, server, n=3, prompt=[120] * 5)
        wait_for(server, "octavo:queued_requests", 3)
        assert server.metric("octavo:queued_tokens") == 5
        assert_refused(post(server, prompt=["a", "b"]), "3 requests are queued; the limit is 4.")
        one = pool.submit(post, server)
        wait_for(server, "octavo:queued_requests", 4)
    assert (choices.result().status_code, one.result().status_code) == (200, 200)
    assert len(choices.result().json()["choices"]) == 3


def test_what_can_never_wait_is_refused_with_the_numbers(server: ServerProcess) -> None:
    answer = post(server, n=5)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "n"
    assert "5 choices, more than may ever wait: 4" in answer.json()["error"]["message"]
    with server.client() as client:
        body = {"messages": [{"role": "user", "content": "y" * 41}]}
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages"
    assert "prompt tokens, more than may ever wait: 40" in answer.json()["error"]["message"]


def test_clients_that_leave_the_queue_make_room(server: ServerProcess) -> None:
    with busy(server):
        for stream in (False, True):
            with server.client() as client:
                client.timeout = httpx.Timeout(0.3)
                with pytest.raises(httpx.ReadTimeout):
                    client.post("/v1/completions", json={"prompt": [120] * 40, "stream": stream})
            wait_for(server, "octavo:queued_tokens", 0)


def test_a_request_that_fails_at_the_door_leaves_nothing(server: ServerProcess) -> None:
    for fields in ({"prompt": [999999]}, {"prompt": []}, {"max_tokens": 100000}, {"prompt": [1.5]}):
        assert post(server, **fields).status_code == 400


def test_retry_after_follows_what_the_queue_does() -> None:
    """Three requests of 10 prompt tokens leave it in about 0.8 s each: the next try is told that, give or take."""
    with running_server({"step_seconds": 0.05, "max_num_seqs": 1}, **QUEUED) as server, ThreadPoolExecutor(4) as pool:
        server.wait_ready()
        answers = [pool.submit(post, server, prompt=[120] * 10, max_tokens=16) for _ in range(4)]
        for answer in answers:
            assert answer.result().status_code == 200
        with busy(server):
            waiting = [pool.submit(post, server, prompt=[120] * 10) for _ in range(3)]
            wait_for(server, "octavo:queued_tokens", 30)
            assert 2 <= int(post(server, prompt=[120] * 40).headers["Retry-After"]) <= 8
    assert all(each.result().status_code == 200 for each in waiting)
