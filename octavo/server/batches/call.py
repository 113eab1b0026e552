"""One request to the app in this process, as an HTTP server would hand it over."""

import asyncio
import contextlib
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Scope


class Reply(NamedTuple):
    """``body``: the bytes that a client would get. ``retry_after``: seconds, as the header says."""

    status: int
    request_id: str
    retry_after: int | None
    body: bytes


async def post(app: ASGIApp, path: str, body: bytes) -> Reply:
    """POST ``body``, which is JSON, and wait for all of the answer. Cancelled, it is as a client that has gone."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Message] = []

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()  # nobody hangs up
        raise AssertionError("unreachable")

    async def send(message: Message) -> None:
        sent.append(message)

    # An error that nobody foresaw is answered with a 500, and then raised for the HTTP server to log: it is logged.
    with contextlib.suppress(Exception):
        await app(_scope(path, len(body)), receive, send)
    return _reply(sent)


def _scope(path: str, num_bytes: int) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % num_bytes),
        ],
        "client": None,
        "server": ("localhost", 80),
    }


def _reply(sent: list[Message]) -> Reply:
    start, *parts = sent
    headers: dict[bytes, bytes] = dict(start["headers"])
    retry_after = headers.get(b"retry-after")
    return Reply(
        start["status"],
        headers[b"x-request-id"].decode(),
        None if retry_after is None else int(retry_after),
        b"".join(part.get("body", b"") for part in parts),
    )
