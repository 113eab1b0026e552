"""The engine process as its parent sees it: start it, send it commands, hear what it says, notice its death."""

import asyncio
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess

import zmq
import zmq.asyncio

from octavo.core.errors import ConfigurationError
from octavo.engine.codec import Command, Event, News, Ready, Shutdown, StartFailed, decode_event, encode
from octavo.engine.interface import EngineLimits
from octavo.engine.log_format import log_format_in_use
from octavo.engine.process import EngineFactory, EngineProcessArgs, run_engine_process
from octavo.engine.spawn import EXIT_UNGUARDED, SpawnedProcess
from octavo.engine.steady_clock import steady_time

logger = logging.getLogger(__name__)

SILENCE_SECONDS = 4.0
"""A process not heard from for this long (heartbeats come every second) is stopped or stuck."""

PATIENCE_SECONDS = 2.0

_MAIN_GUARD = (
    "the new process reads the script that starts it again, so that must be a file, with what it does under "
    '`if __name__ == "__main__":`'
)

STORING_SECONDS = 60.0
"""How long the engine may take its prefix cache to disk before it is ended."""


class EngineChild:
    """The process and the two sockets to it. All methods belong to one event loop.

    ``spawned``: the process, where it is there already. ``on_news`` is called with what the engine reports,
    ``on_death`` once the process has ended, and then ``dead`` is set.
    """

    def __init__(
        self,
        on_news: Callable[[News], None],
        on_death: Callable[[], None],
        log_stats: bool,
        spawned: SpawnedProcess | None = None,
    ) -> None:
        self._on_news = on_news
        self._on_death = on_death
        self._log_stats = log_stats
        self._spawned = spawned
        self._heard = asyncio.Condition()
        self._last_heard = time.monotonic()
        self._has_spoken = False
        self._folder: str | None = None
        self._process: BaseProcess | None = None
        self._reader: asyncio.Task[None] | None = None
        self._context = zmq.asyncio.Context()
        self.dead = asyncio.Event()

    async def start(self, factory: EngineFactory) -> EngineLimits:
        """Let the process begin, and wait until it can take requests. ``factory`` is pickled and called there.

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
        log = logger.getEffectiveLevel(), self._log_stats, log_format_in_use()
        args = EngineProcessArgs(commands, outputs, os.getpid(), steady_time.epoch, *log)
        spawned = self._spawned or SpawnedProcess()
        self._process = spawned.process
        spawned.begin(run_engine_process, factory, args)
        self._reader = asyncio.create_task(self._read())
        loop.add_reader(self._process.sentinel, self._on_exit)
        try:
            return await self._ready
        finally:
            self._remove_folder()  # both ends are connected, or never will be

    def send(self, command: Command) -> None:
        # The queue has no limit, so what stops a message is that the process has left: its end is told very soon.
        with suppress(zmq.Again):
            self._commands.send(encode(command), zmq.DONTWAIT)

    @property
    def is_alive(self) -> bool:
        return self._process is not None and not self.dead.is_set()

    @property
    def _is_ready(self) -> bool:
        """Has it said so? Where its start was given up before, it may never hear what it is sent."""
        return self._ready.done() and not self._ready.cancelled() and self._ready.exception() is None

    @property
    def exit_code(self) -> int | None:
        """Of the process; negative where a signal ended it, None while it runs."""
        return None if self._process is None else self._process.exitcode

    async def is_responsive(self) -> bool:
        """Whether the process lives and has been heard from lately; waits a little for a sign of life."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS), self._heard:
                # Silence may also be this process's own, too busy to listen: so it is given a chance to.
                await self._heard.wait_for(lambda: not self._is_silent)
                return self.is_alive
        return False

    def ask_to_end(self) -> bool:
        """Let the process finish what it has to and end by itself, which sets ``dead``; false if it is not there, or
        not far enough to obey."""
        if not self.is_alive or not self._is_ready:
            return False
        self.send(Shutdown())
        return True

    async def end(self, hurried: asyncio.Event | None = None) -> None:
        """Let the process end by itself, its prefix cache on disk; or, after a while or when ``hurried`` is set, like
        it or not."""
        if self.ask_to_end():
            events = [self.dead] if hurried is None else [self.dead, hurried]
            waits = [asyncio.create_task(event.wait()) for event in events]
            deadline = time.monotonic() + STORING_SECONDS
            while time.monotonic() < deadline:
                done, _ = await asyncio.wait(waits, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
                if done or self._is_silent:  # one that was stopped stores nothing
                    break
            for wait in waits:
                wait.cancel()
        self.shutdown()

    @property
    def _is_silent(self) -> bool:
        return time.monotonic() - self._last_heard >= SILENCE_SECONDS

    def shutdown(self, timeout: float = 2.0) -> None:
        """Stop the process (killed after ``timeout`` seconds), close the sockets, leave no file. May be repeated."""
        if self._process is not None and self._process.is_alive():
            self.send(Shutdown())
            self._process.join(timeout if self._is_ready else 0.0)
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

    async def _read(self) -> None:
        while True:
            self._take(decode_event(await self._outputs.recv()))
            self._has_spoken = True
            self._remove_folder()  # all sockets are connected, so nobody else can join and no file is left
            self._last_heard = time.monotonic()
            async with self._heard:
                self._heard.notify_all()

    def _take(self, event: Event) -> None:
        if isinstance(event, News):
            self._on_news(event)
        elif isinstance(event, Ready) and not self._ready.done():
            self._ready.set_result(event.limits)
        elif isinstance(event, StartFailed) and not self._ready.done():
            self._ready.set_exception(ConfigurationError(event.message))

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
            self._ready.set_exception(ConfigurationError(self._start_failure(code)))
        self._on_death()

    def _start_failure(self, code: int | None) -> str:
        if code == EXIT_UNGUARDED:
            return f"The engine's process cannot be started from here: {_MAIN_GUARD}."
        if not self._has_spoken:
            return f"The engine process ended with code {code} before it said a word. Note that {_MAIN_GUARD}."
        return f"The engine process ended with code {code} while it was starting."

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
