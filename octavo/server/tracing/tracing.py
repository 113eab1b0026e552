"""The part of tracing that belongs to the event loop: which requests are over, and what the engine has to say of them.

The engine is asked for many at a time, once in a while, and between two steps.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from octavo.core.errors import EngineDeadError
from octavo.engine.traces import RequestTrace
from octavo.server.ledger import Entry
from octavo.server.tracing.ended import EndedRequest, ended_request, refused_request
from octavo.server.tracing.sender import MAX_PENDING, SpanSender
from octavo.server.visit import Visit

ASK_SECONDS = 1.0
"""Between two questions to the engine, while requests end."""

MAX_ASKED = 128
"""Requests in a question; when there are so many it is not put off."""

ANSWER_SECONDS = 10.0
"""How long the engine may take for an answer; then spans are made without it."""

CLOSE_SECONDS = 2.0

AskEngine = Callable[[list[str]], Awaitable[list[RequestTrace]]]


class Tracing:
    """All methods belong to one event loop."""

    def __init__(self, sender: SpanSender) -> None:
        self._sender = sender
        self._ended: list[EndedRequest] = []
        self._are_many = asyncio.Event()
        self._has_some = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def start(self, ask: AskEngine) -> None:
        """``ask``: see ``AsyncEngineClient.traces``."""
        self._ask = ask
        self._running = asyncio.create_task(self._run())

    async def close(self, *, is_hurried: bool) -> None:
        """What has ended until now is still sent, within a moment."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        seconds = 0.0 if is_hurried else CLOSE_SECONDS
        deadline = time.monotonic() + seconds
        while self._ended:
            await self._hand_over(max(0.0, deadline - time.monotonic()))
        await asyncio.to_thread(self._sender.close, seconds)

    def end(self, entry: Entry) -> None:
        self._put(ended_request(entry))

    def refuse(self, visit: Visit) -> None:
        """The engine has never heard of it."""
        self._put(refused_request(visit))

    def _put(self, ended: EndedRequest) -> None:
        if len(self._ended) >= MAX_PENDING:
            self._sender.lose()
            return
        self._ended.append(ended)
        self._has_some.set()
        if len(self._ended) >= MAX_ASKED:
            self._are_many.set()

    async def _run(self) -> None:
        while True:
            await self._has_some.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_SECONDS):
                    await self._are_many.wait()
            await self._hand_over(ANSWER_SECONDS)

    async def _hand_over(self, seconds: float) -> None:
        batch = self._ended[:MAX_ASKED]
        del self._ended[:MAX_ASKED]
        if not self._ended:
            self._has_some.clear()
        if len(self._ended) < MAX_ASKED:
            self._are_many.clear()
        traces: dict[str, RequestTrace] = {}
        try:
            traces = await _known(self._ask, batch, seconds)
        finally:
            self._sender.put([(ended, traces.get(ended.engine_id or "")) for ended in batch])


async def _known(ask: AskEngine, batch: Sequence[EndedRequest], seconds: float) -> dict[str, RequestTrace]:
    ids = [ended.engine_id for ended in batch if ended.engine_id is not None]
    if not ids:
        return {}
    try:
        async with asyncio.timeout(seconds):
            return {trace.request_id: trace for trace in await ask(ids)}
    except (EngineDeadError, TimeoutError):
        return {}
