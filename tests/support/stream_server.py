"""A server of OpenAI's API that answers as its script says, at known times; in a thread of the test's process, so that
both sides read one clock."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any]


@dataclass
class Script:
    """How requests are answered. ``parts(i, body)``: what request i gets after the head, a pause in seconds before each
    part; ``status(i)``: its status code. ``places``: how many are answered at once, others wait."""

    parts: Callable[[int, Body], list[tuple[float, bytes]]]
    status: Callable[[int], int] = lambda index: 200
    places: int = 1000
    metrics: list[str] = field(default_factory=list)
    """The pages of /metrics, one a request; none: 404."""


@dataclass
class Seen:
    """Of each request its body, when it came, and when each part of its answer was written."""

    port: int = 0
    bodies: list[Body] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    writes: dict[int, list[float]] = field(default_factory=dict)
    num_open: int = 0
    most_open: int = 0


def event(text: str | None = None, **more: Any) -> bytes:
    """A chunk of a completion."""
    choices = [] if text is None else [{"index": 0, "text": text, "finish_reason": None}]
    return b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n"


def ending(prompt_tokens: int, completion_tokens: int) -> bytes:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return event(usage=usage) + b"data: [DONE]\n\n"


def words(pauses: list[float], prompt_tokens: int = 3) -> list[tuple[float, bytes]]:
    """One token after each pause, and the end at once after the last."""
    return [*((pause, event(" word")) for pause in pauses), (0.0, ending(prompt_tokens, len(pauses)))]


@contextmanager
def stream_server(script: Script) -> Iterator[Seen]:
    """The server on a free port of this machine."""
    seen, ready, stop = Seen(), threading.Event(), threading.Event()

    async def serve() -> None:
        places = asyncio.Semaphore(script.places)

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await _handle(reader, writer, script, seen, places)
            except ConnectionError:
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        seen.port = server.sockets[0].getsockname()[1]
        ready.set()
        await asyncio.to_thread(stop.wait)
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(10.0)
    try:
        yield seen
    finally:
        stop.set()
        thread.join(10.0)


async def _handle(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, script: Script, seen: Seen, places: asyncio.Semaphore
) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    if head.startswith("GET"):
        await _get(head.split()[1], writer, script)
        return
    length = next(int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length"))
    body: Body = json.loads(await reader.readexactly(length))
    index = len(seen.bodies)
    seen.bodies.append(body | {"path": head.split()[1], "head": head})
    seen.arrivals.append(time.perf_counter())
    seen.num_open += 1
    seen.most_open = max(seen.most_open, seen.num_open)
    try:
        async with places:
            writer.write(f"HTTP/1.1 {script.status(index)} Said\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            for pause, part in script.parts(index, body):
                await asyncio.sleep(pause)
                seen.writes.setdefault(index, []).append(time.perf_counter())
                writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            await writer.drain()
    finally:
        seen.num_open -= 1


async def _get(path: str, writer: asyncio.StreamWriter, script: Script) -> None:
    pages = {"/v1/models": json.dumps({"data": [{"id": "listed"}]})}
    if path == "/metrics" and script.metrics:
        pages[path] = script.metrics.pop(0)
    page = pages.get(path, "").encode()
    status = "200 OK" if path in pages else "404 Not Found"
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(page)}\r\nConnection: close\r\n\r\n".encode() + page)
    await writer.drain()
