"""uvicorn's HTTP connection with eight habits of its own.

1. Headers are bounded (431), which the parser beneath does not do.
2. What is not HTTP is answered with an OpenAI error body as well.
3. A client that closes its sending side only, and still reads, keeps its request. From here that looks the same as a
   client that is gone, so bytes without meaning are sent now and then: whoever is gone answers with a reset.
4. What is left of a body when its request has been answered (413, 401) is read and dropped, up to a bound. To close at
   once would reset the connection, and the answer could be lost: many clients send all of a body before they read.
5. Pieces of a body can be written at once (``ChunkWriter``).
6. A client that sends its next requests before it has its answer, and leaves, is noticed: the connection reads no more
   while they wait, so bytes without meaning are sent to it too. uvicorn ends the last of them alone then.
7. To a client of HTTP/1.0, which knows no chunks, a body of no known length is sent as it is.
8. A client that offers another protocol (``Upgrade: h2c``, as Java's does with every request) is answered as if it had
   not. The parser beneath reads no body then.
"""

import asyncio
from contextlib import suppress
from typing import Any

import httptools
import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from octavo.server.errors import ApiError, error_body

PROBE_SECONDS = 0.25
DRAIN_BYTES = 64 * 2**20
DRAIN_SECONDS = 30.0
_CHUNKS = "octavo.chunks"
_LENGTH_HEADERS = (b"content-length", b"transfer-encoding")
_INTERIM_RESPONSE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Allowed, and ignored by clients, any number of times before the final response (RFC 9110, 15.2)."""
_EVENT_COMMENT_CHUNK = b"3\r\n:\n\n\r\n"
"""One HTTP chunk that holds an empty comment of an event stream; only event streams are sent in chunks here."""


class ChunkWriter:
    """Writes pieces of the body of an answer that has begun, past ASGI: a message takes several calls through all that
    is wrapped around an application, and more time than a token's event."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def write(self, data: bytes) -> bool:
        """False: not now, since the client reads too slowly or is gone, or the body is not sent in chunks. Then a
        message has to be sent, which waits."""
        cycle = self._cycle
        if cycle.flow.write_paused or cycle.disconnected or not cycle.chunked_encoding:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True


def chunk_writer(scope: Scope) -> ChunkWriter | None:
    """That of the request, where the server beneath has one."""
    found: ChunkWriter | None = scope.get("extensions", {}).get(_CHUNKS, {}).get("writer")
    return found


class _Unchunked:
    """``app`` as a client of HTTP/1.0 can read it: where the length of a body is not told, its end is that of the
    connection, which such a client does not keep."""

    def __init__(self, app: ASGIApp, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cycle = self._cycle
        is_open_ended = False

        async def send_plain(message: Message) -> None:
            nonlocal is_open_ended
            if message["type"] == "http.response.start":
                is_open_ended = all(name.lower() != b"content-length" for name, _ in message["headers"])
                if is_open_ended:
                    cycle.chunked_encoding = False
            elif is_open_ended:
                cycle.expected_content_length += len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, send_plain)


class BoundedHttpProtocol(HttpToolsProtocol):
    """``max_header_bytes``: request line and headers together."""

    max_header_bytes = 64 * 2**10

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_bytes = 0
        self._in_headers = True
        self._running: RequestResponseCycle | None = None
        """The latest request that is or was answered; ``cycle`` is the latest that was read."""
        self._probe: asyncio.TimerHandle | None = None
        self._drain: asyncio.TimerHandle | None = None
        """Running while the rest of a body is dropped."""
        self._num_drained = 0
        self._is_repeated = False
        """The parser is told again what is known already."""

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._drain is not None:
            self._num_drained += len(data)
            if self._num_drained > DRAIN_BYTES:
                self.transport.close()
                return
        if self._in_headers:
            self._header_bytes += len(data)
            # A first packet may hold much body; what counts is being in the headers still after this many bytes.
            if self._header_bytes - len(data) > self.max_header_bytes:
                self._refuse_headers()
                return
        self._unset_keepalive_if_required()
        try:
            self._parse(memoryview(data))
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _parse(self, data: memoryview) -> None:
        """
        Raises:
            httptools.HttpParserError: it is not HTTP.
        """
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._decline_upgrade()
                data = data[upgrade.args[0] :]
            else:
                return

    def _decline_upgrade(self) -> None:
        """The parser has stopped after the headers. A new one gets those that tell the length of the body, and goes on
        there."""
        lengths = [b"%b: %b\r\n" % each for each in self.headers if each[0] in _LENGTH_HEADERS]
        self.parser = httptools.HttpRequestParser(self)
        with suppress(AttributeError):  # httptools before 0.6.3
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._is_repeated = True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(lengths))
        self._is_repeated = False

    def on_message_begin(self) -> None:
        if not self._is_repeated:
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._is_repeated:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_repeated:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_repeated:
            return
        self._in_headers = False
        super().on_headers_complete()
        if self.cycle is not None:
            self.scope["extensions"] = {_CHUNKS: {"writer": ChunkWriter(self.cycle)}}
        if self.pipeline:
            self._watch_client()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        self._running = cycle
        super()._start_asgi_task(cycle, _Unchunked(app, cycle) if cycle.scope["http_version"] == "1.0" else app)  # type: ignore[arg-type]

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # its body has not been read
        self._in_headers = True
        self._header_bytes = 0
        self._end_drain()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self._in_headers and not self.transport.is_closing():
            self._num_drained = 0
            self._drain = self.loop.call_later(DRAIN_SECONDS, self.transport.close)

    def _end_drain(self) -> None:
        if self._drain is not None:
            self._drain.cancel()
            self._drain = None

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, msg, code="invalid_http"), b"Bad Request")

    def _refuse_headers(self) -> None:
        message = f"The request's headers are longer than {self.max_header_bytes} bytes."
        self._refuse(ApiError(431, message, code="headers_too_large"), b"Request Header Fields Too Large")

    def _refuse(self, error: ApiError, phrase: bytes) -> None:
        body = msgspec.json.encode(error_body(error))
        head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (error.status, phrase, len(body)) + body)
        self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. True keeps the connection for the answers that are under way."""
        cycle: RequestResponseCycle | None = self.cycle
        has_tls = self.transport.get_extra_info("ssl_object") is not None  # which cannot be closed on one side
        if has_tls or cycle is None or cycle.response_complete or cycle.more_body:
            return False
        if cycle.scope["http_version"] == "1.0":  # may be sent nothing before its answer, so it counts as gone
            return False
        cycle.keep_alive = False  # closes after the answer
        self._watch_client()
        return True

    def _watch_client(self) -> None:
        if self._probe is None:
            self._probe = self.loop.call_later(PROBE_SECONDS, self._probe_client)

    def _probe_client(self) -> None:
        self._probe = None
        cycle = self._running
        if cycle is None or cycle.response_complete or self.transport.is_closing():
            return
        if not cycle.response_started:
            self.transport.write(_INTERIM_RESPONSE)
        elif cycle.chunked_encoding:
            self.transport.write(_EVENT_COMMENT_CHUNK)
        self._watch_client()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._probe is not None:
            self._probe.cancel()
        self._end_drain()
        super().connection_lost(exc)
        running = self._running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
