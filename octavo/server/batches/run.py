"""Answering a batch: the app of the server in this process, and what begins, watches and ends it."""

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from octavo.core.errors import EngineDeadError
from octavo.engine.client import AsyncEngineClient
from octavo.engine.spawn import SpawnedProcess
from octavo.metrics.prometheus import EngineMetrics
from octavo.server.app import create_app
from octavo.server.batches.batch import Batch
from octavo.server.batches.progress import Progress
from octavo.server.batches.workers import LineWorkers
from octavo.server.http import loop_factory
from octavo.server.ledger import Ledger
from octavo.server.life import Model, bring_up, take_down
from octavo.server.restarts import RestartBudget, outlive
from octavo.server.settings import ServerSettings
from octavo.server.state import Phase, ServerState

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0


def run_batch(
    batch: Batch,
    settings: ServerSettings,
    max_open: int,
    find_model: Callable[[], Model],
    spawned: SpawnedProcess | None = None,
) -> Progress:
    """Answer what is left of ``batch``, at most ``max_open`` lines at a time, and tell how it went. ``find_model``,
    ``spawned``: see octavo.server.run.run_server.

    Raises:
        ConfigurationError: the model cannot be found or loaded, or a file cannot be read or written.
        EngineDeadError: the engine process ended by itself, and none may be started any more.
        SystemExit: a signal ended it before all was answered.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(BatchRun(batch, settings, max_open, spawned).run(find_model))


class BatchRun:
    """One run, from loading to the last answer that it waits for."""

    def __init__(
        self, batch: Batch, settings: ServerSettings, max_open: int, spawned: SpawnedProcess | None = None
    ) -> None:
        metrics = EngineMetrics(settings.served_model_name)
        ledger = Ledger()
        engine = AsyncEngineClient(ledger.observing(metrics.observe), settings.log_stats, spawned)
        self._batch = batch
        self._state = ServerState(settings, engine, metrics, started_at=int(time.time()), ledger=ledger)
        self._restarts = RestartBudget(settings.restart_engine, time.monotonic)
        self._max_open = max_open
        self._progress = Progress(batch.num_lines, batch.num_before, batch.num_unreadable)
        self._signals: list[int] = []
        self._stopping, self._hurried = asyncio.Event(), asyncio.Event()

    async def run(self, find_model: Callable[[], Model]) -> Progress:
        """See run_batch."""
        self._install_signal_handlers()
        working = asyncio.create_task(self._work(find_model))
        stopping = asyncio.create_task(self._stopped())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)
            self._progress.close()
            await take_down(self._state, self._hurried)
        if self._signals and self._progress.num_done < self._batch.num_lines:
            logger.warning("Stopped after %s; the same command goes on from there.", self._progress.done)
            raise SystemExit(128 + self._signals[-1])
        return self._progress

    async def _work(self, find_model: Callable[[], Model]) -> None:
        model = await bring_up(self._state, find_model)
        app = create_app(self._state)
        workers = LineWorkers(app, self._batch, self._progress.note, self._is_dead, self._stopping)
        try:
            async with asyncio.TaskGroup() as group:
                ticking = group.create_task(self._tick())
                living = group.create_task(outlive(self._state, model.engine_factory, self._restarts))
                await asyncio.gather(*(group.create_task(workers.answer_lines()) for _ in range(self._max_open)))
                ticking.cancel()
                living.cancel()
        except BaseExceptionGroup as errors:
            raise self._told(errors.exceptions[0]) from None

    def _is_dead(self) -> bool:
        return self._state.phase is Phase.DEAD

    def _told(self, error: BaseException) -> BaseException:
        if not isinstance(error, EngineDeadError):
            return error
        code = self._state.engine.child.exit_code
        return EngineDeadError(
            f"The engine process ended with code {code} after {self._progress.done}; the same command goes on from "
            "there."
        )

    async def _tick(self) -> None:
        """What is written reaches the disk, and who watches sees how far it is."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await asyncio.to_thread(self._batch.sync)
            self._progress.tick(self._state.metrics.stats)

    def _install_signal_handlers(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        """First: no new lines. Second: end at once."""
        self._signals.append(number)
        (self._hurried if self._stopping.is_set() else self._stopping).set()

    async def _stopped(self) -> None:
        """Until what is open has had its time after a signal."""
        await self._stopping.wait()
        if self._state.phase is not Phase.READY:
            return
        seconds = self._state.settings.shutdown_timeout
        logger.warning("Stopping. Open lines get up to %g s, a second signal ends them at once.", seconds)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurried.wait()
