"""The engine process as the HTTP process sees it: start it, send requests, hand out deltas, notice its death."""

import asyncio
import itertools
import logging
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess

import zmq
import zmq.asyncio

from octavo.core.errors import ConfigurationError, EngineDeadError
from octavo.engine.coalesce import merge_delta
from octavo.engine.codec import (
    Abort,
    Add,
    Command,
    Event,
    ListPins,
    News,
    Ready,
    ResetPrefixCache,
    Shutdown,
    StartFailed,
    decode_event,
    encode,
)
from octavo.engine.interface import EngineLimits
from octavo.engine.messages import EngineOutputs, EngineRequest, EngineStats, OutputDelta, PinList
from octavo.engine.process import EngineFactory, EngineProcessArgs, run_engine_process
from octavo.server.errors import RefusedByEngineError

logger = logging.getLogger(__name__)

SILENCE_SECONDS = 4.0
"""A process not heard from for this long (heartbeats come every second) is stopped or stuck."""

PATIENCE_SECONDS = 2.0

STORING_SECONDS = 60.0
"""How long the engine may take its prefix cache to disk before it is ended."""

_CLIENT_NAMES = {"beam_width": "n"}
"""Fields of the engine that have another name over HTTP."""

OutputsListener = Callable[[EngineOutputs, list[int]], None]


class RequestStream:
    """Deltas of one request waiting to be read: at most one a choice, merged while the reader is busy."""

    def __init__(self, request: EngineRequest) -> None:
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.started = False
        self._unfinished = request.num_choices
        self._pending: dict[int, OutputDelta] = {}
        self._error: Exception | None = None
        self._wake = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Every choice has its finish_reason, or the request failed as a whole."""
        return self._unfinished <= 0 or self._error is not None

    def put(self, delta: OutputDelta) -> None:
        self.started = True
        if delta.invalid_param is not None:
            param = _CLIENT_NAMES.get(delta.invalid_param, delta.invalid_param) or None
            self.fail(RefusedByEngineError(delta.error or "The request cannot be served.", param))
            return
        if delta.finish_reason is not None:
            self._unfinished -= 1
        pending = self._pending.get(delta.index)
        if pending is None:
            self._pending[delta.index] = delta
        else:
            merge_delta(pending, delta)
        self._wake.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._wake.set()

    async def deltas(self) -> AsyncGenerator[OutputDelta, None]:
        while True:
            await self._wake.wait()
            self._wake.clear()
            pending, self._pending = self._pending, {}
            for delta in pending.values():
                yield delta
            if self._error is not None:
                raise self._error
            if self._unfinished <= 0 and not self._pending:
                return


class AsyncEngineClient:
    """AsyncEngine (engine/interface.py) over ZeroMQ. All methods belong to one event loop.

    ``on_outputs`` is called with all that the engine reports, for the metrics. ``idle`` is set while no request is
    open, ``dead`` once the process has ended.
    """

    limits: EngineLimits

    def __init__(self, on_outputs: OutputsListener, log_stats: bool = True) -> None:
        self._on_outputs = on_outputs
        self._log_stats = log_stats
        self._streams: dict[str, RequestStream] = {}
        self._calls: dict[int, asyncio.Future[PinList]] = {}
        self._call_ids = itertools.count()
        self._stats = EngineStats()
        self._heard = asyncio.Condition()
        self._last_heard = time.monotonic()
        self._folder: str | None = None
        self._process: BaseProcess | None = None
        self._reader: asyncio.Task[None] | None = None
        self._context = zmq.asyncio.Context()
        self.dead = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()

    async def start(self, factory: EngineFactory) -> EngineLimits:
        """Spawn the process and wait until it can take requests. ``factory`` is pickled and called there.

        Raises:
            ConfigurationError: the engine could not be built; the message is its own sentence.
        """
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[EngineLimits] = loop.create_future()
        self._folder = tempfile.mkdtemp(prefix="octavo-")  # 0700: nobody else may connect
        commands, outputs = f"ipc://{self._folder}/c", f"ipc://{self._folder}/o"
        self._commands = zmq.Context(self._context).socket(zmq.PUSH)
        self._commands.setsockopt(zmq.SNDHWM, 0)  # bounded by the queue limits at the door, so a send never waits
        self._commands.bind(commands)
        self._outputs = self._context.socket(zmq.PULL)
        self._outputs.bind(outputs)
        args = EngineProcessArgs(commands, outputs, os.getpid(), logger.getEffectiveLevel(), self._log_stats)
        # Daemonic, so that an exit of this process that skips shutdown() does not wait for it.
        self._process = multiprocessing.get_context("spawn").Process(
            target=run_engine_process, args=(factory, args), name="octavo-engine", daemon=True
        )
        self._process.start()
        self._reader = asyncio.create_task(self._read())
        loop.add_reader(self._process.sentinel, self._on_exit)
        try:
            self.limits = await self._ready
        finally:
            self._remove_folder()  # both ends are connected, or never will be
        return self.limits

    async def generate(self, request: EngineRequest) -> AsyncGenerator[OutputDelta, None]:
        """See AsyncEngine.generate. Close the iterator (``contextlib.aclosing``) to abort at once."""
        if not self.is_alive:
            raise EngineDeadError("The engine is not running.")
        stream = RequestStream(request)
        self._streams[request.request_id] = stream
        self.idle.clear()
        try:
            self._send(Add(request))
            async for delta in stream.deltas():
                yield delta
        finally:
            del self._streams[request.request_id]
            if not self._streams:
                self.idle.set()
            if not stream.ended and self.is_alive:
                self._send(Abort(request.request_id))

    async def stats(self) -> EngineStats:
        return self._stats

    def reset_prefix_cache(self) -> None:
        self._send(ResetPrefixCache())

    async def list_pins(self, unpin: str | None = None) -> PinList:
        """The pins there are, once the one of id ``unpin`` has been released.

        Raises:
            EngineDeadError: the engine process is gone.
        """
        if not self.is_alive:
            raise EngineDeadError("The engine is not running.")
        call_id = next(self._call_ids)
        call: asyncio.Future[PinList] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = call
        try:
            self._send(ListPins(call_id, unpin))
            return await call
        finally:
            del self._calls[call_id]

    @property
    def is_alive(self) -> bool:
        return self._process is not None and not self.dead.is_set()

    @property
    def exit_code(self) -> int | None:
        """Of the process; negative where a signal ended it, None while it runs."""
        return None if self._process is None else self._process.exitcode

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    def queued(self) -> list[RequestStream]:
        """Requests that the engine has not said anything about yet."""
        return [stream for stream in self._streams.values() if not stream.started and not stream.ended]

    def fail_queued(self, error: Exception) -> None:
        """End the requests that have not started, at their readers and in the engine."""
        for request_id, stream in self._streams.items():
            if not stream.started and not stream.ended:
                stream.fail(error)
                self._send(Abort(request_id))

    def fail_open(self, error: Exception) -> None:
        """End every open request, at their readers and in the engine."""
        for request_id, stream in self._streams.items():
            if not stream.ended:
                stream.fail(error)
                self._send(Abort(request_id))

    async def is_responsive(self) -> bool:
        """Whether the process lives and has been heard from lately; waits a little for a sign of life."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS), self._heard:
                # Silence may also be this process's own, too busy to listen: so it is given a chance to.
                await self._heard.wait_for(lambda: time.monotonic() - self._last_heard < SILENCE_SECONDS)
                return self.is_alive
        return False

    def ask_to_end(self) -> bool:
        """Let the process finish what it has to and end by itself, which sets ``dead``; false if it is not there, or
        not far enough to obey."""
        if not self.is_alive or not self._ready.done():
            return False
        self._send(Shutdown())
        return True

    async def end(self, hurried: asyncio.Event | None = None) -> None:
        """Let the process end by itself, its prefix cache on disk; or, after a while or when ``hurried`` is set, like
        it or not."""
        if self.ask_to_end():
            events = [self.dead] if hurried is None else [self.dead, hurried]
            waits = [asyncio.create_task(event.wait()) for event in events]
            await asyncio.wait(waits, timeout=STORING_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        self.shutdown()

    def shutdown(self, timeout: float = 2.0) -> None:
        """Stop the process (killed after ``timeout`` seconds), close the sockets, leave no file. May be repeated."""
        if self._process is not None and self._process.is_alive():
            self._send(Shutdown())
            self._process.join(timeout if self._ready.done() else 0.0)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
        self._declare_dead()
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None
        self._remove_folder()
        if self._process is not None:
            self._commands.close(linger=0)
        self._context.destroy(linger=0)

    def _send(self, command: Command) -> None:
        # The queue has no limit, so what stops a message is that the process has left: its end is told very soon.
        with suppress(zmq.Again):
            self._commands.send(encode(command), zmq.DONTWAIT)

    async def _read(self) -> None:
        while True:
            self._take(decode_event(await self._outputs.recv()))
            self._remove_folder()  # all sockets are connected, so nobody else can join and no file is left
            self._last_heard = time.monotonic()
            async with self._heard:
                self._heard.notify_all()

    def _take(self, event: Event) -> None:
        if isinstance(event, News):
            self._take_outputs(event)
        elif isinstance(event, Ready) and not self._ready.done():
            self._ready.set_result(event.limits)
        elif isinstance(event, StartFailed) and not self._ready.done():
            self._ready.set_exception(ConfigurationError(event.message))

    def _take_outputs(self, news: News) -> None:
        outputs = news.outputs
        if outputs.stats is not None:
            self._stats = outputs.stats
        self._on_outputs(outputs, news.iterations)
        for answer in outputs.pin_lists:
            call = self._calls.get(answer.call_id)
            if call is not None and not call.done():
                call.set_result(answer)
        for delta in outputs.deltas:
            stream = self._streams.get(delta.request_id)
            if stream is not None:
                stream.put(delta)

    def _on_exit(self) -> None:
        """The sentinel fired. What the process sent last is read before its readers are told."""
        assert self._process is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._process.sentinel)
        loop.call_later(0.1, self._declare_dead)

    def _declare_dead(self) -> None:
        if self._process is None or self.dead.is_set():
            return
        self._process.join(1.0)
        code = self._process.exitcode
        with suppress(RuntimeError):  # no running loop: nothing is left to tell
            asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self.dead.set()
        if not self._ready.done():
            self._ready.set_exception(
                ConfigurationError(f"The engine process ended with code {code} while it was starting.")
            )
        for stream in self._streams.values():
            if not stream.ended:
                stream.fail(EngineDeadError("The engine process has ended; the request is lost."))
        for call in self._calls.values():
            if not call.done():
                call.set_exception(EngineDeadError("The engine process has ended."))

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
