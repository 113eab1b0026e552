"""The client: as little as reads a stream, so that the server is what is measured; what came is checked afterwards."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from octavo.bench.front.engine import MARK
from octavo.core.errors import ConfigurationError

_MARK = MARK.encode()
_LAST_CHUNK = b"0\r\n\r\n"
_OK = b"HTTP/1.1 200"
_WORD = re.compile(rf" (\d{{5}}){MARK}")


def request_bytes(path: str, fields: Mapping[str, Any]) -> bytes:
    body = json.dumps(fields).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: front\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection(asyncio.Protocol):
    """One stream after another over one connection. ``on_tokens`` is told how many have come."""

    def __init__(self, on_tokens: Callable[[int], None]) -> None:
        self._on_tokens = on_tokens
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self._waits = True
        self._sent_at = 0.0
        self.first_event_seconds = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class

    def send(self, request: bytes) -> "asyncio.Future[bytes]":
        """The whole answer, as it came."""
        assert self._transport is not None
        self._answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pieces, self._waits = [], True
        self._sent_at = time.perf_counter()
        self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        if self._waits and b"data:" in data:
            self.first_event_seconds = time.perf_counter() - self._sent_at
            self._waits = False
        self._pieces.append(data)
        self._on_tokens(data.count(_MARK))
        if data.endswith(_LAST_CHUNK) or not self._pieces[0].startswith(_OK):
            self._end()

    def _end(self) -> None:
        if not self._answer.done():
            self._answer.set_result(b"".join(self._pieces))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None and hasattr(self, "_answer"):
            self._end()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def connect(port: int, on_tokens: Callable[[int], None]) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection(on_tokens), "127.0.0.1", port)
    return connection


def events_of(answer: bytes) -> list[bytes]:
    """The events of a streamed answer.

    Raises:
        ConfigurationError: it is none, or was cut off.
    """
    head, _, rest = answer.partition(b"\r\n\r\n")
    if not head.startswith(_OK) or not answer.endswith(_LAST_CHUNK):
        raise ConfigurationError(f"the server did not stream an answer to its end: {answer[:500]!r}")
    body = bytearray()
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return [event.removeprefix(b"data: ") for event in bytes(body).split(b"\n\n")[:-1]]
        body += rest[:length]
        rest = rest[length + 2 :]


def words_of(events: list[bytes]) -> tuple[list[int], int]:
    """The numbers of the words, as they came, and how many events brought some."""
    numbers: list[int] = []
    num_events = 0
    for event in events:
        if _MARK in event:
            num_events += 1
            numbers += map(int, _WORD.findall(event.decode()))
    return numbers, num_events
