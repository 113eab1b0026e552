"""Sending answers while watching the client: work stops as soon as nobody waits for it."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.server.errors import ApiError, ClientGoneError, as_api_error, error_body
from octavo.server.protocol import ChunkWriter, chunk_writer

T = TypeVar("T")

Event = dict[str, Any]

AnyEvent = Event | msgspec.Raw
"""Raw: it is encoded already."""


_LINE_SEPARATORS = re.compile("\u2028|\u2029|\u0085".encode())
"""They end no line of an event, but do for clients that split text as Python does. In JSON they are in strings only."""


def _unnamed(event: AnyEvent) -> bytes:
    data = bytes(event) if isinstance(event, msgspec.Raw) else msgspec.json.encode(event)
    if b"\xe2\x80" in data or b"\xc2\x85" in data:
        data = _LINE_SEPARATORS.sub(_escaped, data)
    return b"data: " + data + b"\n\n"


def _escaped(character: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % ord(character.group().decode())


def _named(event: AnyEvent) -> bytes:
    assert isinstance(event, dict), "its name is one of its fields"
    return b"event: %s\n" % str(event["type"]).encode() + _unnamed(event)


@dataclass(frozen=True, slots=True)
class StreamStyle:
    """How an endpoint writes its events. ``end``: follows the last one; ``error``: the event of a failure, after which
    nothing follows."""

    encode: Callable[[AnyEvent], bytes]
    error: Callable[[ApiError], Event]
    end: bytes = b""


PLAIN_EVENTS = StreamStyle(_unnamed, error_body, b"data: [DONE]\n\n")
"""Of completions and chat completions."""


def named_events(error: Callable[[ApiError], Event]) -> StreamStyle:
    """Events whose ``type`` is their name too."""
    return StreamStyle(_named, error)


def json_response(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


class Answer(Protocol):
    """What an endpoint answers with, in events or whole."""

    def events(self) -> AsyncGenerator[AnyEvent, None]: ...

    async def whole(self) -> Response: ...


async def answered(
    request: Request, answer: Answer, is_streamed: bool | None, style: StreamStyle = PLAIN_EVENTS
) -> Response:
    """The answer as the client wants it.

    Raises:
        ClientGoneError: nobody waits for it any more.
    """
    if is_streamed:
        return await event_stream(request, answer.events(), style)
    return await unless_gone(request.receive, answer.whole())


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled when the client closes the connection, queued or running.

    The task of the request watches the client. The work has one of its own, so that a token wakes what makes and writes
    its event, and none of what is wrapped around the application. The request's body must have been read.

    Raises:
        ClientGoneError: it did.
    """
    watcher, task = asyncio.current_task(), asyncio.create_task(work)
    assert watcher is not None
    is_watching, has_ended = True, False

    def end(_: object) -> None:
        nonlocal has_ended
        if is_watching:
            has_ended = True
            watcher.cancel()

    task.add_done_callback(end)
    try:
        await _gone(receive)
        is_over = task.done()
    except asyncio.CancelledError:
        if not has_ended or watcher.uncancel():  # somebody else has cancelled it
            raise
        is_over = True
    finally:
        is_watching = False
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    if is_over:
        return task.result()
    raise ClientGoneError


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def event_stream(
    request: Request, events: AsyncGenerator[AnyEvent, None], style: StreamStyle = PLAIN_EVENTS
) -> Response:
    """Server-sent events. What fails before the first event is an ordinary error answer with its status."""
    try:
        first = await unless_gone(request.receive, _next(events))
    except BaseException:
        await events.aclose()
        raise
    return EventStreamResponse(first, events, style)


async def _next(events: AsyncGenerator[AnyEvent, None]) -> AnyEvent:
    return await anext(events)


class EventStreamResponse(Response):
    """Sends each event as it comes, then the style's end; a failure is sent as an error event and no end."""

    media_type = "text/event-stream"

    def __init__(self, first: AnyEvent, events: AsyncGenerator[AnyEvent, None], style: StreamStyle) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._events = events
        self._style = style

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            with suppress(ClientGoneError, OSError):  # OSError: the client left while being written to
                await unless_gone(receive, self._send_all(send, chunk_writer(scope)))

    async def _send_all(self, send: Send, writer: ChunkWriter | None) -> None:
        style, encode = self._style, self._style.encode
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await _send_piece(send, encode(self._first))
        try:
            async for event in self._events:
                data = encode(event)
                if writer is None or not writer.write(data):
                    await _send_piece(send, data)
            if style.end:
                await _send_piece(send, style.end)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001  (whatever it was, the client is told)
            await _send_piece(send, style.encode(style.error(as_api_error(error))))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_piece(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
