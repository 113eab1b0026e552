"""B54, B37: a client that leaves costs nothing more, in whatever state its request is; others notice nothing."""

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from tests.support.fake_server import ServerProcess
from tests.support.waiting import wait_until

LONG = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True}


def request(fields: dict[str, Any], version: str = "1.1") -> bytes:
    body = json.dumps(fields).encode()
    return f"POST /v1/completions HTTP/{version}\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def sent(server: ServerProcess, fields: dict[str, Any]) -> AbstractContextManager[socket.socket]:
    return sent_bytes(server, request(fields))


@contextmanager
def sent_bytes(server: ServerProcess, data: bytes) -> Iterator[socket.socket]:
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.settimeout(10.0)
        raw.connect(("127.0.0.1", server.port))
        raw.sendall(data)
        yield raw


def load(server: ServerProcess) -> tuple[float, float, float]:
    return server.num_open, server.metric("vllm:num_requests_running"), server.metric("vllm:num_requests_waiting")


def close(raw: socket.socket, reset: bool) -> None:
    if reset:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("more", [{"stream": True}, {}, {"n": 4}, {"prompt": ["a", "b"]}], ids=str)
def test_running_requests_are_aborted(slow_server: ServerProcess, more: dict[str, Any], reset: bool) -> None:
    aborted = slow_server.metric("vllm:request_success_total", finished_reason="abort")
    num_choices = more.get("n", len(more.get("prompt", "x")))
    with sent(slow_server, LONG | more) as raw:
        wait_until(lambda: load(slow_server)[1] == num_choices)
        close(raw, reset)
        wait_until(lambda: load(slow_server) == (0, 0, 0))
    wait_until(
        lambda: slow_server.metric("vllm:request_success_total", finished_reason="abort") == aborted + num_choices
    )


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("more", [{"stream": True}, {}], ids=str)
def test_queued_requests_are_aborted(slow_server: ServerProcess, more: dict[str, Any], reset: bool) -> None:
    with sent(slow_server, LONG | {"n": 4}) as running, sent(slow_server, LONG | more) as queued:
        wait_until(lambda: load(slow_server) == (2, 4, 1))
        close(queued, reset)
        wait_until(lambda: load(slow_server) == (1, 4, 0))
        close(running, reset)
        wait_until(lambda: load(slow_server) == (0, 0, 0))


@pytest.mark.parametrize("more", [{"stream": True}, {}], ids=str)
def test_half_closed_clients_are_served(slow_server: ServerProcess, more: dict[str, Any]) -> None:
    """A client may say that it sends no more and still read its answer, here after a wait in the queue."""
    with (
        sent(slow_server, LONG | {"n": 4, "max_tokens": 20}),
        sent(slow_server, LONG | more | {"max_tokens": 10}) as raw,
    ):
        raw.shutdown(socket.SHUT_WR)
        answer = raw.makefile("rb").read()
    final = answer.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    assert len(final) < len(answer)
    assert final.startswith(b"HTTP/1.1 200 OK\r\n")
    assert (b"data: [DONE]" in final) == ("stream" in more)
    assert b'"finish_reason":"length"' in final
    wait_until(lambda: load(slow_server) == (0, 0, 0))


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("more", [{"stream": True}, {}], ids=str)
def test_requests_that_wait_on_one_connection_are_aborted(
    slow_server: ServerProcess, more: dict[str, Any], reset: bool
) -> None:
    with sent_bytes(slow_server, request(LONG | more)) as raw:
        wait_until(lambda: load(slow_server) == (1, 1, 0))
        raw.sendall(2 * request(LONG | more))
        close(raw, reset)
        wait_until(lambda: load(slow_server) == (0, 0, 0))
    assert "Traceback" not in slow_server.log


def test_nothing_is_sent_between_the_chunks_of_an_answer_while_the_next_request_waits(
    slow_server: ServerProcess,
) -> None:
    first, second = (request(LONG | {"max_tokens": count, "stream": True}) for count in (30, 2))
    with sent_bytes(slow_server, first + second) as raw:
        raw.shutdown(socket.SHUT_WR)
        answer = raw.makefile("rb").read()
    *parts, rest = answer.split(b"0\r\n\r\n")
    assert not rest
    bodies = [part[part.index(b"HTTP/1.1 200") :].partition(b"\r\n\r\n")[2] for part in parts]
    texts = [streamed_text(without_chunks(body)) for body in bodies]
    with slow_server.client() as client:
        alone = client.post("/v1/completions", json=LONG | {"max_tokens": 30}).json()["choices"][0]["text"]
    assert texts == [alone, alone[:2]]


def without_chunks(body: bytes) -> bytes:
    """All but the last, empty chunk."""
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        end = int(size, 16)
        assert body[end : end + 2] == b"\r\n"
        found, body = found + body[:end], body[end + 2 :]
    return found


def streamed_text(events: bytes) -> str:
    shown = events.replace(b":\n\n", b"")  # comments
    *found, done, rest = [each.removeprefix(b"data: ") for each in shown.split(b"\n\n")]
    assert (done, rest) == (b"[DONE]", b"")
    return "".join(json.loads(each)["choices"][0]["text"] for each in found)


@pytest.mark.parametrize("more", [{"stream": True}, {}], ids=str)
def test_a_client_of_http_1_0_gets_a_body_without_chunks(slow_server: ServerProcess, more: dict[str, Any]) -> None:
    with sent_bytes(slow_server, request(LONG | more | {"max_tokens": 3}, "1.0")) as raw:
        head, _, body = raw.makefile("rb").read().partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert (streamed_text(body) if more else json.loads(body)["choices"][0]["text"]) == "alp"


def test_a_client_of_http_1_0_is_sent_nothing_but_its_answer(slow_server: ServerProcess) -> None:
    """So that nothing tells whether it reads still, once it has closed its side."""
    with sent_bytes(slow_server, request(LONG, "1.0")) as raw:
        wait_until(lambda: load(slow_server) == (1, 1, 0))
        raw.shutdown(socket.SHUT_WR)
        assert raw.makefile("rb").read() == b""
        wait_until(lambda: load(slow_server) == (0, 0, 0))


def test_one_client_leaving_leaves_the_other_alone(slow_server: ServerProcess) -> None:
    """Both carry the same request id, which is for tracing only (B37)."""
    headers = {"X-Request-Id": "0_x"}
    texts: list[str] = []

    def stays() -> None:
        with slow_server.client(**headers) as client:
            answer = client.post("/v1/completions", json=LONG | {"max_tokens": 16, "request_id": "0_x"})
            texts.append(answer.json()["choices"][0]["text"])
            assert answer.headers["X-Request-Id"] == "0_x"

    thread = threading.Thread(target=stays)
    thread.start()
    with (
        slow_server.client(**headers) as client,
        client.stream("POST", "/v1/completions", json=LONG | {"stream": True, "request_id": "0_x"}) as leaves,
    ):
        for _, _line in zip(range(3), leaves.iter_lines(), strict=False):
            pass
    thread.join()
    assert texts == ["alpha beta gamma"]
    wait_until(lambda: load(slow_server) == (0, 0, 0))


@pytest.mark.parametrize("request_id", ["x" * 1000, "a b", "é", "", "<script>"])
def test_request_ids_are_not_reflected_raw(server: ServerProcess, request_id: str) -> None:
    with server.client() as client:
        answer = client.get("/version", headers=[(b"X-Request-Id", request_id.encode())])
    assert answer.headers["X-Request-Id"] not in (request_id, "")


def test_a_client_that_does_not_read_stops_nobody(server: ServerProcess) -> None:
    """Its stream is held back by its own connection; the engine and the others go on."""
    # 64 times the logprobs of a prompt: more than the buffers between the two hold.
    fields = {"prompt": "x" * 490, "max_tokens": 5, "n": 64, "stream": True, "logprobs": 20, "echo": True}
    generated = server.metric("vllm:generation_tokens_total")
    with sent(server, fields) as raw:
        wait_until(lambda: server.metric("vllm:generation_tokens_total") == generated + 320)
        with server.client() as client:
            assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 200
            assert client.get("/load").json()["server_load"] == 1
        answer = raw.makefile("rb")
        assert any(line == b"data: [DONE]\n" for line in answer)
    wait_until(lambda: load(server) == (0, 0, 0))
