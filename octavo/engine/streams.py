"""What an open request waits for: its deltas, as they come from the engine process, or the end of its time."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection

from octavo.core.errors import RefusedByEngineError
from octavo.engine.coalesce import merge_delta
from octavo.engine.deadlines import next_bound, timeout_message
from octavo.engine.messages import EngineRequest, OutputDelta
from octavo.engine.steady_clock import steady_time

LONGEST_TIMER_SECONDS = 3600.0
"""A bound may be further away than a timer can be set."""


READERS_A_TURN = 16


class WakeTurns:
    """Wakes readers, so many a turn of the loop. A step has news for all that run; what comes meanwhile, new requests
    and first tokens above all, waits for a few of them so, and not for all."""

    def __init__(self) -> None:
        self._waiters: deque[asyncio.Future[None]] = deque()

    def wake(self, waiter: "asyncio.Future[None]") -> None:
        self._waiters.append(waiter)
        if len(self._waiters) == 1:
            asyncio.get_running_loop().call_soon(self._wake_some)

    def _wake_some(self) -> None:
        for _ in range(min(READERS_A_TURN, len(self._waiters))):
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
        if self._waiters:
            asyncio.get_running_loop().call_soon(self._wake_some)


class RequestStream:
    """Deltas of one request waiting to be read: at most one a choice, merged while the reader is busy. ``started``:
    the engine computes it, or has done so; ``on_start`` is called when it begins. Its first news wakes its reader at
    once, later ones as ``turns`` have it. Belongs to the running event loop."""

    def __init__(self, request: EngineRequest, turns: WakeTurns, on_start: Callable[[], None] | None = None) -> None:
        self.started = False
        self._turns = turns
        self._has_begun = False
        self._request = request
        self._on_start = on_start
        self._unfinished = request.num_choices
        self._pending: dict[int, OutputDelta] = {}
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watch_time()

    @property
    def ended(self) -> bool:
        """Every choice has its finish_reason, or the request failed as a whole."""
        return self._unfinished <= 0 or self._error is not None

    def start(self) -> None:
        self.started = True
        if self._on_start is not None:
            self._on_start()

    def abandon(self) -> bool:
        """Nobody waits for more of it; true if the engine may still be computing some."""
        if self._timer is not None:
            self._timer.cancel()
        has_more, self._unfinished = self._unfinished > 0, 0
        return has_more

    def _watch_time(self) -> None:
        """Tell the reader at the time itself that it is over: the engine looks between two steps only. What it
        computes meanwhile is of no use to anybody, and ends when the stream is abandoned."""
        bound = next_bound(self._request, is_started=self.started)
        if bound is None or self.ended:
            return
        now = steady_time()
        if now < bound.time:
            seconds = min(bound.time - now, LONGEST_TIMER_SECONDS)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._watch_time)
            return
        message = timeout_message(self._request, bound.kind, now)
        self._keep(OutputDelta(self._request.request_id, 0, finish_reason="error", error=message, timeout=bound.kind))

    def put(self, delta: OutputDelta) -> None:
        if delta.invalid_param is not None:
            if not self.started:  # refused as a whole
                self._unfinished = 0
            message = delta.error or "The request cannot be served."
            self.fail(RefusedByEngineError(message, delta.invalid_param or None, delta.invalid_code))
            return
        if delta.finish_reason is not None:
            self._unfinished -= 1
        self._keep(delta)

    def _keep(self, delta: OutputDelta) -> None:
        pending = self._pending.get(delta.index)
        if pending is None:
            self._pending[delta.index] = delta
        else:
            merge_delta(pending, delta)
        if not self._has_begun:
            self._has_begun = True
            self._wake()
        elif self._waiter is not None and not self._waiter.done():
            self._turns.wake(self._waiter)

    def fail(self, error: Exception) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> Collection[OutputDelta]:
        """What has come since it was last asked for, at least one delta; none once the request has ended. One reader
        at a time.

        Raises:
            Exception: what it failed with, when all that came before has been taken.
        """
        while not self._pending:
            if self._error is not None:
                raise self._error
            if self._unfinished <= 0:
                return ()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        pending, self._pending = self._pending, {}
        return pending.values()
