"""Running the server: HTTP comes up at once, the engine behind it; signals drain; a dead engine ends it."""

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable

from octavo.core.errors import ConfigurationError, EngineDeadError
from octavo.engine.client import AsyncEngineClient
from octavo.engine.spawn import SpawnedProcess
from octavo.metrics.prometheus import EngineMetrics
from octavo.server.app import create_app
from octavo.server.errors import unavailable
from octavo.server.http import HttpServer, http_config, listen, loop_factory
from octavo.server.ledger import Ledger
from octavo.server.life import Model, bring_up, in_daemon_thread, take_down
from octavo.server.record_file import Rotation
from octavo.server.recording import RequestRecorder
from octavo.server.restarts import RestartBudget, outlive
from octavo.server.settings import ServerSettings
from octavo.server.state import Phase, ServerState
from octavo.server.tracing.setup import trace_requests

logger = logging.getLogger(__name__)

DEATH_NOTICE_SECONDS = 1.0
"""How long a server whose engine died still answers (503), so that open streams get their error event."""


def run_server(
    settings: ServerSettings, find_model: Callable[[], Model], spawned: SpawnedProcess | None = None
) -> None:
    """Serve until a signal has been obeyed. ``find_model`` runs in a thread once HTTP is up; it may fetch files.
    ``spawned``: the engine's process, where it is there already.

    Raises:
        ConfigurationError: the port is taken, or the model cannot be found or loaded.
        EngineDeadError: the engine process ended by itself.
        SystemExit: a second signal came before the first was obeyed.
    """
    listener = listen(settings)
    with listener, asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(ServerRun(settings, listener, spawned).run(find_model))


class ServerRun:
    """One life of the server, from listening to the last connection."""

    def __init__(
        self, settings: ServerSettings, listener: socket.socket, spawned: SpawnedProcess | None = None
    ) -> None:
        self._settings = settings
        self._listener = listener
        metrics = EngineMetrics(settings.served_model_name)
        self._recorder = None
        if settings.record is not None:
            rotation = Rotation(settings.record_max_size, settings.record_max_files)
            self._recorder = RequestRecorder(settings.record, rotation)
        tracing = None if settings.otlp_traces_endpoint is None else trace_requests(settings)
        ledger = Ledger(None if tracing is None else tracing.end)
        observe = ledger.observing(metrics.observe)
        engine = AsyncEngineClient(observe, settings.log_stats, spawned, self._recorder)
        self._state = ServerState(
            settings, engine, metrics, started_at=int(time.time()), ledger=ledger, tracing=tracing
        )
        self._restarts = RestartBudget(settings.restart_engine, time.monotonic)
        self._signals: list[int] = []
        self._hurried = asyncio.Event()
        self._drain_task: asyncio.Task[None] | None = None
        self._reload_task: asyncio.Task[None] | None = None
        self._reload_asked = False

    async def run(self, find_model: Callable[[], Model]) -> None:
        """See run_server."""
        self._http = HttpServer(http_config(create_app(self._state), self._settings))
        self._install_signal_handlers()
        logger.info("Octavo is listening at %s; requests are answered 503 until the model is loaded.", self._address)
        if not (self._settings.needs_key or ipaddress.ip_address(self._listener.getsockname()[0]).is_loopback):
            logger.warning("No API key is set: whoever can reach %s may use this server.", self._address)
        if self._state.tracing is not None:
            self._state.tracing.start(self._state.engine.traces)
        serving = asyncio.create_task(self._http.serve(sockets=[self._listener]))
        living = asyncio.create_task(self._live(find_model))
        try:
            await asyncio.wait((serving, living), return_when=asyncio.FIRST_COMPLETED)
            self._http.should_exit = True
            await serving
            if living.done():
                living.result()
        finally:
            living.cancel()
            await asyncio.gather(living, return_exceptions=True)
            if self._state.tracing is not None:
                await self._state.tracing.close(is_hurried=self._hurried.is_set())
            await take_down(self._state, self._hurried)
            if self._recorder is not None:
                self._recorder.close()
            logger.info("Octavo has stopped.")
        if len(self._signals) > 1:
            raise SystemExit(128 + self._signals[-1])

    async def _live(self, find_model: Callable[[], Model]) -> None:
        """Load, then wait for the engine's death; raises what ends the server."""
        state = self._state
        model = await bring_up(state, find_model)
        if state.phase is Phase.READY:
            self._announce(state.tokenizer.has_chat_template)
        ending = await outlive(state, model.engine_factory, self._restarts)
        logger.error("%s; the server stops.", ending)
        await asyncio.sleep(DEATH_NOTICE_SECONDS)
        raise EngineDeadError(f"{ending}.")

    @property
    def _address(self) -> str:
        """Where the server listens, as it is."""
        host, port = self._listener.getsockname()[:2]
        return f"{self._scheme}://[{host}]:{port}" if ":" in host else f"{self._scheme}://{host}:{port}"

    @property
    def _scheme(self) -> str:
        return "http" if self._settings.ssl_certfile is None else "https"

    @property
    def _url(self) -> str:
        """An address that reaches the server from this machine."""
        host, port = self._listener.getsockname()[:2]
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
        return f"{self._scheme}://{shown}:{port}"

    def _announce(self, can_chat: bool) -> None:
        key = " -H 'Authorization: Bearer KEY'" if self._settings.needs_key else ""
        name = self._settings.served_model_name
        route = "chat/completions" if can_chat else "completions"
        asked = '"messages": [{"role": "user", "content": "Hello"}]' if can_chat else '"prompt": "Hello"'
        logger.info("Octavo serves %s at %s", name, self._address)
        logger.info(
            "Try: curl %s/v1/%s -H 'Content-Type: application/json'%s -d '{\"model\": \"%s\", %s}'",
            *(self._url, route, key, name, asked),
        )

    def _install_signal_handlers(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
            if self._settings.api_key_file is not None or self._settings.ssl_certfile is not None:
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._on_reload)

    def _on_reload(self) -> None:
        """Signals that come while files are read are one more reading, after it."""
        self._reload_asked = True
        if self._reload_task is None or self._reload_task.done():
            self._reload_task = asyncio.create_task(self._reload())

    async def _reload(self) -> None:
        while self._reload_asked:
            self._reload_asked = False
            await in_daemon_thread(self._read_keys)
            self._read_certificate()  # here: connections are being made with it

    def _read_keys(self) -> None:
        """What cannot be used leaves them as they were."""
        if self._settings.api_key_file is None:
            return
        try:
            num_tenants = self._state.keyring.reload()
        except ConfigurationError as error:
            logger.error("The keys stay as they were: %s", error)  # noqa: TRY400  (a sentence, no fault of the code)
        else:
            logger.info("The keys were read again; tenants in the file: %d.", num_tenants)

    def _read_certificate(self) -> None:
        """What cannot be used leaves it as it was."""
        if self._settings.ssl_certfile is None:
            return
        try:
            self._http.reload_certificate()
        except OSError as error:
            logger.error("The certificate stays as it was: %s", error.strerror or error)  # noqa: TRY400
        else:
            logger.info("The certificate was read again.")

    def _on_signal(self, number: int) -> None:
        """First: drain (spec D22). Second: end at once."""
        self._signals.append(number)
        if len(self._signals) == 1:
            self._drain_task = asyncio.create_task(self._drain())
        else:
            self._state.engine.fail_open(unavailable(Phase.DRAINING.value))
            self._http.should_exit = self._http.force_exit = True
            self._hurried.set()

    async def _drain(self) -> None:
        state, engine = self._state, self._state.engine
        state.phase = Phase.DRAINING
        logger.info(
            "Shutting down. Open requests: %d; they get up to %g s, a second signal ends them at once.",
            *(engine.num_open, self._settings.shutdown_timeout),
        )
        engine.fail_queued(unavailable(state.phase.value))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.shutdown_timeout):
                await engine.idle.wait()
        if engine.num_open:
            logger.warning("Requests cut off: %d.", engine.num_open)
        engine.fail_open(unavailable("The server has shut down before this request was finished."))
        self._http.should_exit = True
