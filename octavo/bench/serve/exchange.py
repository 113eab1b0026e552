"""One request over HTTP and its streamed answer, as it looks from outside: when each part of it came.

A connection a request, an event loop's protocol and a parser in C: the load generator must not be what is measured.
"""

import asyncio
import json
import ssl
import time
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import msgspec

from octavo.bench.serve.workload import Endpoint, Planned
from octavo.core.errors import ConfigurationError

CONNECTION, TIMEOUT, CUT_OFF, STREAM = "connection", "timeout", "cut off", "in the stream"
"""Kinds of errors besides status codes: no connection, no end in time, an end without its last event, an error event
in a stream."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server and how it is asked. ``model``: None until it is known. ``ignore_eos``: send it, so that every answer
    has the length that was asked for. ``timeout``: seconds for a whole answer."""

    host: str
    port: int
    path: str
    tls: ssl.SSLContext | None
    model: str | None
    endpoint: Endpoint = "completions"
    api_key: str | None = None
    ignore_eos: bool = True
    timeout: float = 600.0

    def payload(self, planned: Planned) -> bytes:
        """The whole request."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": planned.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": planned.prompt}]
        else:
            body["prompt"] = planned.prompt
        content = json.dumps(body).encode()
        path = f"{self.path}/{'chat/completions' if self.endpoint == 'chat' else 'completions'}"
        lines = [
            f"POST {path} HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
            "Accept: text/event-stream",
            "Connection: close",
            *([f"Authorization: Bearer {self.api_key}"] if self.api_key else []),
        ]
        return "\r\n".join([*lines, "", ""]).encode() + content


def split_url(base_url: str) -> tuple[str, int, str, ssl.SSLContext | None]:
    """Host, port, path of the API and TLS of ``http://host:8000``, with or without ``/v1``.

    Raises:
        ConfigurationError: it is no such address.
    """
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise ConfigurationError(f"--base-url must look like http://127.0.0.1:8000, got {base_url!r}")
    is_tls = parts.scheme == "https"
    path = parts.path.rstrip("/")
    path = path if path.endswith("/v1") else f"{path}/v1"
    return host, port or (443 if is_tls else 80), path, ssl.create_default_context() if is_tls else None


@dataclass(slots=True)
class Answer:
    """What came of one request; times are seconds on the clock of the run.

    ``due``: when it was to be sent; ``sent``: when it was. ``token_times``: when each event with text came; several may
    have come at once. ``error``: None for an answer that is whole, else its kind: a status code, or one of those above.
    """

    due: float
    sent: float = 0.0
    token_times: list[float] = field(default_factory=list)
    end: float = 0.0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    error: str | None = None
    message: str = ""


class _Text(msgspec.Struct):
    """A choice of a chunk; ``delta`` is that of a chat."""

    text: str | None = None
    delta: "_Delta | None" = None
    finish_reason: str | None = None

    @property
    def says_something(self) -> bool:
        delta = self.delta
        return bool(self.text) or (delta is not None and bool(delta.content or delta.reasoning_content))


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None


class _Event(msgspec.Struct):
    choices: list[_Text] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class Exchange(asyncio.Protocol):
    """Sends ``payload`` when it is connected, fills ``answer`` and then sets ``done``."""

    def __init__(self, payload: bytes, answer: Answer, done: "asyncio.Future[None]") -> None:
        self._payload = payload
        self._answer = answer
        self._done = done
        self._parser = httptools.HttpResponseParser(self)
        self._now = 0.0
        self._rest = b""
        self._has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._payload)  # uvloop's are of no class of asyncio

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, msgspec.MsgspecError) as error:
            self._finish(STREAM, str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._now = time.perf_counter()
        self._finish(CUT_OFF if self._answer.token_times else CONNECTION, str(exc or "the server hung up"))

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        *lines, self._rest = (self._rest + body).split(b"\n")
        if self._parser.get_status_code() != 200:
            self._answer.message += body.decode(errors="replace")
            return
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[5:].strip())

    def on_message_complete(self) -> None:
        """Called by the parser."""
        status = self._parser.get_status_code()
        if status != 200:
            self._finish(str(status), self._answer.message)
        elif not self._has_ended:
            self._finish(CUT_OFF, "the answer has no end")
        else:
            self._finish(None, "")

    def _take(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._has_ended = True
            return
        answer, event = self._answer, _decode(data)
        if event.error is not None:
            answer.error, answer.message = STREAM, str(event.error)
        for choice in event.choices:
            if choice.says_something:
                answer.token_times.append(self._now)
            self._has_ended = self._has_ended or choice.finish_reason is not None
        if event.usage is not None:
            answer.num_prompt_tokens = event.usage.prompt_tokens
            answer.num_output_tokens = event.usage.completion_tokens or answer.num_output_tokens

    def _finish(self, error: str | None, message: str) -> None:
        if self._done.done():
            return
        answer = self._answer
        answer.end = self._now
        if answer.error is None and error is not None:
            answer.error, answer.message = error, message
        if answer.error is None:
            answer.token_times = answer.token_times or [answer.end]  # all of it was text that cannot be shown
            answer.num_output_tokens = answer.num_output_tokens or len(answer.token_times)
        self._done.set_result(None)


async def ask(target: Target, payload: bytes, answer: Answer) -> None:
    """Send one request and wait for the end of its answer, whatever that is: it never raises."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    answer.sent = time.perf_counter()
    try:
        async with asyncio.timeout(target.timeout):
            transport, _ = await loop.create_connection(
                lambda: Exchange(payload, answer, done), target.host, target.port, ssl=target.tls
            )
            try:
                await done
            finally:
                transport.abort()
    except TimeoutError:
        answer.error, answer.message = TIMEOUT, f"no end within {target.timeout:g} s"
    except OSError as error:
        answer.error, answer.message = CONNECTION, error.strerror or str(error)
    answer.end = answer.end or time.perf_counter()
