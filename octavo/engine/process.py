"""The engine process: the step loop behind two ZeroMQ sockets.

Commands come in on one socket, outputs go out on another. The loop never waits for a socket while there is work: if
the server is slow to read, outputs are merged per choice (``Outbox``) and sent when there is room. The process ends
with its parent, and its end is what tells the parent that something went wrong.
"""

import contextlib
import gc
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import msgspec
import zmq

from octavo.core.errors import InvalidRequestError, OctavoError
from octavo.engine.coalesce import Outbox
from octavo.engine.codec import (
    Abort,
    Add,
    Heartbeat,
    ListPins,
    ListTraces,
    LookAtBlock,
    News,
    Ready,
    ResetPrefixCache,
    Shutdown,
    StartFailed,
    TakeLook,
    WatchCommand,
    decode_command,
    encode,
    read_request,
)
from octavo.engine.interface import EngineLoop, EngineWatch
from octavo.engine.log_format import LogFormat, set_up_logging
from octavo.engine.looks import View
from octavo.engine.messages import EngineOutputs, OutputDelta, PinList, TraceList
from octavo.engine.snapshot import SnapshotPace
from octavo.engine.spawn import EXIT_ORPHANED
from octavo.engine.stats_log import StatsLog
from octavo.engine.steady_clock import steady_time

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 3600.0
"""A pin may end in a time that no poll takes."""
SEND_QUEUE = 64
"""Messages that may wait in the socket; beyond it the loop merges."""

EXIT_FAILED = 1

EngineFactory = Callable[[], EngineLoop]


@dataclass(frozen=True, slots=True)
class EngineProcessArgs:
    """What the child needs besides the factory: endpoints, who started it, its clock (``SteadyClock``), how it logs."""

    command_endpoint: str
    output_endpoint: str
    parent_pid: int
    clock_epoch: float
    log_level: int = logging.INFO
    log_stats: bool = True
    log_format: LogFormat = "text"


def run_engine_process(factory: EngineFactory, args: EngineProcessArgs) -> NoReturn:
    """Body of the child: build the engine, report ``Ready`` or ``StartFailed``, run the loop until told to stop.

    Does not return: the process ends here, after a fault with a code that is not 0.
    """
    set_up_logging(args.log_level, args.log_format)
    steady_time.epoch = args.clock_epoch
    context = zmq.Context()
    commands = context.socket(zmq.PULL)
    outputs = context.socket(zmq.PUSH)
    heartbeat = _Heartbeat(context, args)
    try:
        commands.connect(args.command_endpoint)
        outputs.setsockopt(zmq.SNDHWM, SEND_QUEUE)
        # A closing socket gives what it holds this long to leave; the parent is reading.
        outputs.setsockopt(zmq.LINGER, 1000)
        outputs.connect(args.output_endpoint)
        outputs.send(encode(Heartbeat()))  # on the socket that was connected last: all of them are
        engine = _build(factory, outputs)
        gc.freeze()  # it stays: no step waits for it to be looked through
        outputs.send(encode(News(EngineOutputs(stats=engine.stats()), [])))  # what is shown before the first request
        outputs.send(encode(Ready(engine.limits)))
        EngineProcessLoop(engine, commands, outputs, args.log_stats).run()
        engine.close()
    except SystemExit:
        raise
    except BaseException:
        logger.exception("The engine loop failed; the engine process ends.")
        sys.exit(EXIT_FAILED)
    finally:
        heartbeat.stop()
        commands.close(linger=0)
        outputs.close()
        context.term()
    # Taking gigabytes of weights and KV memory apart object by object would only make the shutdown slower.
    logging.shutdown()
    os._exit(0)


def _build(factory: EngineFactory, outputs: "zmq.Socket[bytes]") -> EngineLoop:
    try:
        return factory()
    except OctavoError as error:
        outputs.send(encode(StartFailed(str(error))))
    except (MemoryError, OSError) as error:
        outputs.send(encode(StartFailed(f"The engine could not start: {str(error) or type(error).__name__}.")))
    except Exception as error:
        logger.exception("The engine could not start.")
        outputs.send(encode(StartFailed(f"The engine could not start: {type(error).__name__}: {error}")))
    sys.exit(EXIT_FAILED)


class _Heartbeat:
    """A thread that shows the process is running even through a long step, and that notices a lost parent.

    Its socket is connected at once, before ``Ready``: after that the parent removes the socket files.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", args: EngineProcessArgs) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, 2)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(args.output_endpoint)
        self._parent_pid = args.parent_pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        beat = encode(Heartbeat())
        while not self._stop.wait(HEARTBEAT_SECONDS):
            if os.getppid() != self._parent_pid:
                os._exit(EXIT_ORPHANED)
            with contextlib.suppress(zmq.Again):  # the parent is not reading; what counts is that it could
                self._socket.send(beat, zmq.DONTWAIT)
        self._socket.close()


class EngineProcessLoop:
    """Drain commands, step, send; wait only when there is nothing to do."""

    def __init__(
        self,
        engine: EngineLoop,
        commands: "zmq.Socket[bytes]",
        outputs: "zmq.Socket[bytes]",
        log_stats: bool,
    ) -> None:
        self._engine = engine
        self._commands = commands
        self._outputs = outputs
        self._outbox = Outbox()
        self._stats_log = StatsLog(time.monotonic) if log_stats else None
        self._pace = SnapshotPace(time.monotonic)
        self._has_work = False
        self._send_seconds = 0.0
        """Since the last step."""
        self._stopping = False

    def run(self) -> None:
        while not self._stopping:
            if not self._has_work:
                self._wait()
            if self._drain_commands() or self._engine.has_work():
                self._step()
            else:
                self._has_work = False
            self._flush()

    def _wait(self) -> None:
        """Sleep until a command comes, or there is room for what is still to be sent, or a pin ends."""
        poller = zmq.Poller()
        poller.register(self._commands, zmq.POLLIN)
        if self._outbox:
            poller.register(self._outputs, zmq.POLLOUT)
        seconds = self._engine.idle_seconds()
        poller.poll(None if seconds is None else math.ceil(1000 * min(seconds, LONGEST_WAIT_SECONDS)))

    def _drain_commands(self) -> bool:
        received = False
        while True:
            try:
                data = self._commands.recv(zmq.DONTWAIT)
            except zmq.Again:
                return received
            received = True
            self._obey(data)

    def _obey(self, data: bytes) -> None:
        try:
            command = decode_command(data)
        except msgspec.DecodeError as error:
            logger.warning("A message that is no command was dropped: %s", error)
            return
        if isinstance(command, Add):
            self._add(command)
        elif isinstance(command, Abort):
            self._engine.abort(command.request_id)
        elif isinstance(command, ResetPrefixCache):
            self._engine.reset_prefix_cache()
        elif isinstance(command, ListPins):
            was_found = command.unpin is not None and self._engine.unpin(command.unpin)
            self._pace.hasten()  # it is answered beside figures of pins
            self._outbox.put(EngineOutputs(pin_lists=[PinList(command.call_id, self._engine.pins(), was_found)]))
        elif isinstance(command, ListTraces):
            traces = self._engine.traces(command.request_ids, command.count)
            self._outbox.put(EngineOutputs(trace_lists=[TraceList(command.call_id, traces)]))
        elif isinstance(command, WatchCommand):
            self._outbox.put(EngineOutputs(views=[_view(self._engine.watch, command)]))
        elif isinstance(command, Shutdown):
            self._stopping = True

    def _add(self, command: Add) -> None:
        """Hand on a request; one that cannot be read ends alone, like one that the engine refuses."""
        try:
            request = read_request(command)
        except InvalidRequestError as error:
            logger.warning("A request was dropped: %s", error)
            if command.request_id is not None:
                refusal = OutputDelta(command.request_id, 0, finish_reason="error")
                refusal.error, refusal.invalid_param, refusal.invalid_code = (
                    error.message,
                    error.param or "",
                    error.code,
                )
                self._outbox.put(EngineOutputs([refusal]))
            return
        self._engine.add_request(request)

    def _step(self) -> None:
        outputs = self._engine.step(self._tell_started)
        self._has_work = self._engine.has_work()
        if outputs.steps:
            outputs.steps[-1].reply += self._send_seconds  # what the step before took to send
            self._send_seconds = 0.0
        # What is shown while idle is the state after the last request.
        if not self._has_work or self._pace.is_due():
            outputs.stats = self._pace.take(self._engine.stats)
            if self._stats_log is not None and self._stats_log.due():
                self._stats_log.write(outputs.stats)
        self._outbox.put(outputs)

    def _tell_started(self, request_ids: list[str]) -> None:
        """At once, not with what the step brings: a long one may only begin, and the server counts what waits."""
        self._outbox.put(EngineOutputs(started=request_ids))
        self._flush()

    def _flush(self) -> None:
        # Asked first, so that what a slow reader has not taken is not written out again at every step.
        if not self._outbox or not self._outputs.poll(0, zmq.POLLOUT):
            return
        began = time.perf_counter()
        outputs, iterations = self._outbox.peek()
        with contextlib.suppress(zmq.Again):
            self._outputs.send(encode(News(outputs, iterations)), zmq.DONTWAIT)
            self._outbox.clear()
        self._send_seconds += time.perf_counter() - began


def _view(watch: EngineWatch, command: WatchCommand) -> View:
    if isinstance(command, TakeLook):
        return View(command.call_id, look=watch.look())
    if isinstance(command, LookAtBlock):
        return View(command.call_id, block=watch.block(command.block_id, command.with_tokens))
    return View(command.call_id, choices=watch.choices(command.request_ids))
