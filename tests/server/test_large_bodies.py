"""An answer that comes before all of a body has been sent reaches the client, whatever client it is."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Any
from unittest.mock import patch

import httpx
import openai
import pytest
import uvicorn

from octavo.server import protocol
from octavo.server.protocol import BoundedHttpProtocol
from tests.support.fake_server import ServerProcess, running_server

LARGE = 48 * 2**20
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with running_server(api_keys=["key"], host="127.0.0.1") as running:
        yield running.wait_ready()


def pieces() -> Iterator[bytes]:
    for _ in range(LARGE // 2**20):
        yield b"x" * 2**20


@pytest.mark.parametrize("content", [b"x" * LARGE, pieces], ids=["declared", "chunked"])
@pytest.mark.parametrize(("key", "status"), [("key", 413), ("other", 401)])
def test_httpx_sees_the_answer_and_keeps_the_connection(
    server: ServerProcess, content: Any, key: str, status: int
) -> None:
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {key}"}, timeout=30.0) as client:
        for _ in range(3):
            answer = client.post("/v1/completions", content=content() if callable(content) else content)
            assert (answer.status_code, "connection" in answer.headers) == (status, False)
            assert "error" in answer.json()
            assert client.get("/health").status_code == 200


def test_openai_sees_the_answer(server: ServerProcess) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0)
    with client, pytest.raises(openai.APIStatusError, match="larger than the limit of 33554432 bytes") as caught:
        client.completions.create(model="fake", prompt="x" * LARGE)
    assert caught.value.status_code == 413


def test_a_client_that_asks_before_it_sends(server: ServerProcess) -> None:
    """As curl does: it gets the answer in place of the word to go on, and may send on the same connection."""
    with closing(socket.create_connection(("127.0.0.1", server.port))) as raw:
        fields = b"Authorization: Bearer key\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
        raw.sendall(HEAD + fields % LARGE)
        assert raw.recv(65536).startswith(b"HTTP/1.1 413 ")
        raw.sendall(b"x" * LARGE)
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        got = b"".join(iter(lambda: raw.recv(65536), b""))
    assert b"HTTP/1.1 200 OK" in got


def test_a_client_that_reads_only_once_all_is_sent(server: ServerProcess) -> None:
    with closing(socket.create_connection(("127.0.0.1", server.port))) as raw:
        raw.sendall(HEAD + b"Authorization: Bearer key\r\nContent-Length: %d\r\n\r\n" % LARGE)
        time.sleep(0.2)  # the answer is there by now
        raw.sendall(b"x" * LARGE)
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        got = b"".join(iter(lambda: raw.recv(65536), b""))
    assert got.startswith(b"HTTP/1.1 413 ")
    assert got.count(b"HTTP/1.1 200 OK") == 1
    assert got.count(b"HTTP/1.1") == 2


class _Answers:
    """An application that answers 413 before it has read the body."""

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize(("num_bytes", "seconds"), [(2**20, 60.0), (2**40, 0.2)])
async def test_what_is_dropped_is_bounded(num_bytes: int, seconds: float) -> None:
    """A body without end is dropped for so many bytes, or so long; then the connection is closed."""
    config = uvicorn.Config(_Answers(), log_config=None, lifespan="off", http=BoundedHttpProtocol)
    config.load()
    http = uvicorn.Server(config)
    loop = asyncio.get_running_loop()
    made = partial(BoundedHttpProtocol, config, http.server_state, {})
    listener = await loop.create_server(made, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    with patch.multiple(protocol, DRAIN_BYTES=num_bytes, DRAIN_SECONDS=seconds):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % 2**50)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413 ")
        start = time.monotonic()
        with suppress(ConnectionError):
            while True:
                assert time.monotonic() - start < 30.0, "it is never closed"
                writer.write(b"x" * 2**16)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()
    listener.close()
