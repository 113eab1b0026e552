"""Lines of a batch on their way through the app, so many at a time."""

import asyncio
from collections.abc import Callable

import msgspec
from starlette.types import ASGIApp

from octavo.core.errors import EngineDeadError
from octavo.server.batches.batch import Batch, Task, Unreadable
from octavo.server.batches.call import Reply, post

MAX_OPEN_BYTES = 256 * 2**20
"""Of the lines that are being answered; one that is larger is answered alone."""

OWN_TIME_CODES = ("queue_slow", "queue_timeout")
"""Refusals since a time that the line itself has set is over, or would be."""


class LineWorkers:
    """Each line is asked of ``app`` as if it had come over HTTP, and its answer written as soon as it is there.

    ``note``: told the status of each answer, None for a line that cannot be read. ``is_dead``: whether the engine is,
    so that no answer is to be had any more. Once ``stopping`` is set, no new lines are begun.
    """

    def __init__(
        self,
        app: ASGIApp,
        batch: Batch,
        note: Callable[[int | None], None],
        is_dead: Callable[[], bool],
        stopping: asyncio.Event,
    ) -> None:
        self._app = app
        self._batch = batch
        self._note = note
        self._is_dead = is_dead
        self._stopping = stopping
        self._reading = asyncio.Lock()
        self._open_bytes = 0
        self._freed = asyncio.Event()

    async def answer_lines(self) -> None:
        """One line after the other until there are no more. As many of these run as lines may be open.

        Raises:
            ConfigurationError: the output cannot be written, or the input not be read.
            EngineDeadError: the engine is gone.
        """
        while (task := await self._next()) is not None:
            try:
                reply = await self._reply(task)
                self._batch.write(task, reply)
            finally:
                self._open_bytes -= len(task.request.body)
                self._freed.set()
            self._note(reply.status)

    async def _next(self) -> Task | None:
        """The next line, once there is room for it."""
        async with self._reading:
            while not self._stopping.is_set():
                item = self._batch.next()
                if not isinstance(item, Unreadable):
                    return None if item is None else await self._begun(item)
                self._note(None)
                await asyncio.sleep(0)
        return None

    async def _begun(self, task: Task) -> Task:
        num_bytes = len(task.request.body)
        while self._open_bytes and self._open_bytes + num_bytes > MAX_OPEN_BYTES:
            self._freed.clear()
            await self._freed.wait()
        self._open_bytes += num_bytes
        return task

    async def _reply(self, task: Task) -> Reply:
        """The answer, however long there is no room for the request."""
        while True:
            reply = await post(self._app, task.request.url, task.request.body)
            if reply.status == 503 and self._is_dead():
                raise EngineDeadError("The engine process has ended.")
            if reply.status not in (429, 503) or _error_code(reply) in OWN_TIME_CODES:
                return reply
            await asyncio.sleep(1 if reply.retry_after is None else reply.retry_after)


class _ErrorShown(msgspec.Struct):
    code: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorShown


def _error_code(reply: Reply) -> str | None:
    return msgspec.json.decode(reply.body, type=_ErrorBody).error.code
