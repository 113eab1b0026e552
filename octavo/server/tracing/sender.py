"""The thread that makes spans and sends them. Nobody waits for it: how many it cannot keep up with is told."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from octavo.engine.traces import RequestTrace
from octavo.server.tracing.ended import EndedRequest
from octavo.server.tracing.tree import Span, span_tree

logger = logging.getLogger(__name__)

MAX_PENDING = 2048
"""Requests whose spans are not sent yet; more go without."""

MAX_BATCH = 128
"""Requests whose spans are sent at once."""

REPEAT_SECONDS = 60.0
"""After which it is said again that some are lost."""


STOP_SECONDS = 0.5
"""For what is being sent when time is over to be given up."""


class Exporter(Protocol):
    """See exporter.py."""

    url: str

    def add(self, tree: Span, traceparent: str, tracestate: str) -> None: ...

    def send(self) -> str | None: ...

    def stop(self) -> None: ...


Pending = tuple[EndedRequest, RequestTrace | None]


class SpanSender:
    """``put`` and ``lose`` return at once. ``model``: as it is served."""

    def __init__(self, exporter: Exporter, model: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._exporter = exporter
        self._model = model
        self._clock = clock
        self._pending: deque[Pending] = deque()
        self._news = threading.Condition()
        self._is_closing = False
        self._num_lost = 0
        self._reason = ""
        self._quiet_until = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True, name="spans")
        self._thread.start()

    def put(self, ended: Sequence[Pending]) -> None:
        with self._news:
            room = MAX_PENDING - len(self._pending)
            self._pending.extend(ended[:room])
            self._num_lost += max(0, len(ended) - room)
            self._news.notify()

    def lose(self) -> None:
        """One request goes without spans."""
        with self._news:
            self._num_lost += 1

    def close(self, timeout: float) -> None:
        """Send what has come, within so many seconds; of the rest the number is told."""
        with self._news:
            self._is_closing = True
            self._news.notify()
        self._thread.join(timeout)
        self._exporter.stop()
        self._thread.join(min(timeout, STOP_SECONDS))

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._pending and not self._is_closing:
                    self._news.wait()
                if not self._pending:
                    break
                batch = [self._pending.popleft() for _ in range(min(MAX_BATCH, len(self._pending)))]
            self._send(batch)
        self._tell(force=True)

    def _send(self, batch: Sequence[Pending]) -> None:
        try:
            for ended, trace in batch:
                self._exporter.add(span_tree(ended, trace, self._model), ended.traceparent, ended.tracestate)
            reason = self._exporter.send()
        except Exception as error:
            logger.exception("Spans of %d requests could not be made.", len(batch))
            reason = type(error).__name__
        if reason is not None:
            with self._news:
                self._num_lost += len(batch)
        self._reason = reason or ""
        self._tell(force=False)

    def _tell(self, *, force: bool) -> None:
        """What is lost, once a while."""
        if not self._num_lost or (self._clock() < self._quiet_until and not force):
            return
        with self._news:
            lost, self._num_lost = self._num_lost, 0
        self._quiet_until = self._clock() + REPEAT_SECONDS
        why = self._reason or "more came than could be sent"
        logger.warning("Spans of %d requests did not get to %s: %s", lost, self._exporter.url, why)
