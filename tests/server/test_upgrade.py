"""A request that offers another protocol is answered as one that does not: Java's client offers HTTP/2 with each."""

import json
import re
import socket

import pytest

from tests.support.fake_server import ServerProcess

OFFER = b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
BODY = json.dumps({"prompt": "x", "max_tokens": 3, "ignore_eos": True}).encode()
CHUNKED = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (BODY[:7], BODY[7:])) + b"0\r\n\r\n"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + OFFER
PLAIN = b"GET /health HTTP/1.1\r\nHost: x\r\n"
LAST = PLAIN + b"Connection: close\r\n\r\n"


def statuses(server: ServerProcess, data: bytes, piece_bytes: int) -> list[bytes]:
    """Of all answers until the connection ends."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30.0) as raw:
        for start in range(0, len(data), piece_bytes):
            raw.sendall(data[start : start + piece_bytes])
        answers = raw.makefile("rb").read()
    assert answers.count(b'"finish_reason":"length"') == data.count(b"POST")
    return re.findall(rb"HTTP/1.1 ([2-5]\d\d)", answers)


@pytest.mark.parametrize("piece_bytes", [1, 50, 10_000])
@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED,
        PLAIN + OFFER + b"\r\n",
        PLAIN + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    ],
    ids=["declared", "chunked", "no body", "websocket"],
)
def test_it_is_answered_as_without(server: ServerProcess, data: bytes, piece_bytes: int) -> None:
    assert statuses(server, 2 * data + LAST, piece_bytes) == 3 * [b"200"]


def test_thousands_in_one_packet(server: ServerProcess) -> None:
    many = 2000 * (PLAIN + b"Upgrade: x\r\nConnection: Upgrade\r\n\r\n")
    assert len(statuses(server, many + LAST, 2**20)) == 2001


def test_what_is_no_body_is_told(server: ServerProcess) -> None:
    bad = HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30.0) as raw:
        raw.sendall(bad)
        assert raw.makefile("rb").read().startswith(b"HTTP/1.1 400 ")
