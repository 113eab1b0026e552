"""The engine process for asyncio: send it requests, hand out their deltas."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol

from octavo.core.errors import EngineDeadError
from octavo.engine.child import EngineChild
from octavo.engine.codec import (
    Abort,
    Add,
    Command,
    ListPins,
    ListTraces,
    LookAtBlock,
    LookAtRequests,
    News,
    ResetPrefixCache,
    TakeLook,
)
from octavo.engine.interface import EngineLimits
from octavo.engine.looks import BlockLook, ChoiceLook, Look, View
from octavo.engine.messages import EngineOutputs, EngineRequest, EngineStats, OutputDelta, PinList, TraceList
from octavo.engine.process import EngineFactory
from octavo.engine.spawn import SpawnedProcess
from octavo.engine.streams import RequestStream, WakeTurns
from octavo.engine.traces import RequestTrace

OutputsListener = Callable[[EngineOutputs, list[int]], None]


class Recorder(Protocol):
    """Told of every request, of each delta of it that comes, and when it is over or nobody waits for more."""

    def begin(self, request: EngineRequest, limits: EngineLimits) -> None: ...

    def note(self, delta: OutputDelta) -> None: ...

    def forget(self, request_id: str) -> None: ...


class AsyncEngineClient:
    """The engine in the process ``child``. All methods belong to one event loop.

    ``on_outputs`` is called with all that the engine reports, for the metrics. ``idle`` is set while no request is
    open. ``spawned``: see EngineChild.
    """

    limits: EngineLimits

    def __init__(
        self,
        on_outputs: OutputsListener,
        log_stats: bool = True,
        spawned: SpawnedProcess | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.child = EngineChild(self._take, self._on_death, log_stats, spawned)
        self._log_stats = log_stats
        self._on_outputs = on_outputs
        self._recorder = recorder
        self._streams: dict[str, RequestStream] = {}
        self._turns = WakeTurns()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_ids = itertools.count()
        self._stats = EngineStats()
        self.idle = asyncio.Event()
        self.idle.set()

    async def start(self, factory: EngineFactory) -> None:
        """Start the process; ``limits`` are known from then on. See EngineChild.start."""
        self.limits = await self.child.start(factory)

    async def restart(self, factory: EngineFactory) -> None:
        """Start another process in the place of one that has ended. It knows nothing of what that one had cached.

        Raises:
            ConfigurationError: see EngineChild.start.
        """
        self.child.shutdown()
        self.child = EngineChild(self._take, self._on_death, self._log_stats)
        await self.start(factory)

    async def generate(
        self, request: EngineRequest, on_start: Callable[[], None] | None = None
    ) -> AsyncGenerator[OutputDelta, None]:
        """Deltas of all choices until each has its finish_reason. Close the iterator (``contextlib.aclosing``) to
        abort at once. ``on_start`` is called when the engine begins to compute it.

        Raises:
            InvalidRequestError: the engine refused it at the door.
            EngineDeadError: the engine process is gone.
        """
        with self.opened(request, on_start) as stream:
            while deltas := await stream.take():
                for delta in deltas:
                    yield delta

    @contextmanager
    def opened(
        self, request: EngineRequest, on_start: Callable[[], None] | None = None
    ) -> Generator[RequestStream, None, None]:
        """The same, for who takes them by himself: what is still computed at the end of the ``with`` is aborted."""
        self._require_alive()
        stream = RequestStream(request, self._turns, on_start)
        self._streams[request.request_id] = stream
        self.idle.clear()
        try:
            self.child.send(Add(request))
            if self._recorder is not None:
                self._recorder.begin(request, self.limits)
            yield stream
        finally:
            del self._streams[request.request_id]
            if self._recorder is not None:
                self._recorder.forget(request.request_id)
            if not self._streams:
                self.idle.set()
            self._abandon(request.request_id, stream)

    async def stats(self) -> EngineStats:
        return self._stats

    def reset_prefix_cache(self) -> None:
        self.child.send(ResetPrefixCache())

    async def list_pins(self, unpin: str | None = None) -> PinList:
        """The pins there are, once the one of id ``unpin`` has been released.

        Raises:
            EngineDeadError: the engine process is gone.
        """
        answer: PinList = await self._ask(lambda call_id: ListPins(call_id, unpin))
        return answer

    async def traces(self, request_ids: list[str] | None = None, count: int = 0) -> list[RequestTrace]:
        """See EngineLoop.traces.

        Raises:
            EngineDeadError: the engine process is gone.
        """
        answer: TraceList = await self._ask(lambda call_id: ListTraces(call_id, request_ids, count))
        return answer.traces

    async def look(self) -> Look:
        """See EngineWatch.look.

        Raises:
            EngineDeadError: the engine process is gone.
        """
        answer: View = await self._ask(TakeLook)
        assert answer.look is not None
        return answer.look

    async def look_at_block(self, block_id: int, with_tokens: bool) -> BlockLook | None:
        """See EngineWatch.block.

        Raises:
            EngineDeadError: the engine process is gone.
        """
        answer: View = await self._ask(lambda call_id: LookAtBlock(call_id, block_id, with_tokens))
        return answer.block

    async def look_at_requests(self, request_ids: list[str]) -> list[ChoiceLook]:
        """See EngineWatch.choices.

        Raises:
            EngineDeadError: the engine process is gone.
        """
        answer: View = await self._ask(lambda call_id: LookAtRequests(call_id, request_ids))
        return answer.choices

    async def _ask(self, command: Callable[[int], Command]) -> Any:
        """The engine's answer to a command, which is made with the number of the call."""
        self._require_alive()
        call_id = next(self._call_ids)
        call = self._calls[call_id] = asyncio.get_running_loop().create_future()
        try:
            self.child.send(command(call_id))
            return await call
        finally:
            del self._calls[call_id]

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    def queued(self) -> list[RequestStream]:
        """Requests that wait in the engine: nothing of them has been scheduled yet."""
        return [stream for stream in self._streams.values() if not stream.started and not stream.ended]

    def fail_queued(self, error: Exception) -> None:
        """End the requests that have not started, at their readers and in the engine."""
        for request_id, stream in self._streams.items():
            if not stream.started:
                self._fail(request_id, stream, error)

    def fail_open(self, error: Exception) -> None:
        """End every open request, at their readers and in the engine."""
        for request_id, stream in self._streams.items():
            self._fail(request_id, stream, error)

    def _fail(self, request_id: str, stream: RequestStream, error: Exception) -> None:
        if not stream.ended:
            stream.fail(error)
            self._abandon(request_id, stream)

    def _abandon(self, request_id: str, stream: RequestStream) -> None:
        """Choices that nobody waits for any more end in the engine too, also where one of them has failed."""
        if stream.abandon() and self.child.is_alive:
            self.child.send(Abort(request_id))

    def _require_alive(self) -> None:
        if not self.child.is_alive:
            raise EngineDeadError("The engine is not running.")

    def _take(self, news: News) -> None:
        outputs = news.outputs
        if outputs.stats is not None:
            self._stats = outputs.stats
        self._on_outputs(outputs, news.iterations)
        answers: list[PinList | TraceList | View] = [*outputs.pin_lists, *outputs.trace_lists, *outputs.views]
        for answer in answers:
            call = self._calls.get(answer.call_id)
            if call is not None and not call.done():
                call.set_result(answer)
        for request_id in outputs.started:
            if request_id in self._streams:
                self._streams[request_id].start()
        for delta in outputs.deltas:
            stream = self._streams.get(delta.request_id)
            if stream is not None:
                if self._recorder is not None:
                    self._recorder.note(delta)
                stream.put(delta)

    def _on_death(self) -> None:
        for stream in self._streams.values():
            if not stream.ended:
                stream.fail(EngineDeadError("The engine process has ended; the request is lost."))
        for call in self._calls.values():
            if not call.done():
                call.set_exception(EngineDeadError("The engine process has ended."))
