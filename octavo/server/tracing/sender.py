"""The thread that makes spans and sends them. Nobody waits for it: how many it cannot keep up with is told."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from octavo.engine.traces import RequestTrace
from octavo.server.backlog import OVERFULL, Backlog
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
        self._quiet_until = 0.0
        self._backlog: Backlog[Pending] = Backlog(
            self._send, "spans", most=MAX_PENDING, batch_size=MAX_BATCH, at_end=lambda: self._tell(force=True)
        )

    def put(self, ended: Sequence[Pending]) -> None:
        self._backlog.put(ended)

    def lose(self) -> None:
        """One request goes without spans."""
        self._backlog.lose(1, OVERFULL)

    def close(self, timeout: float) -> None:
        """Send what has come, within so many seconds; of the rest the number is told."""
        self._backlog.close(timeout)
        self._exporter.stop()
        self._backlog.close(min(timeout, STOP_SECONDS))

    def _send(self, batch: Sequence[Pending]) -> None:
        for ended, trace in batch:
            self._exporter.add(span_tree(ended, trace, self._model), ended.traceparent, ended.tracestate)
        reason = self._exporter.send()
        if reason is not None:
            self._backlog.lose(len(batch), reason)
        self._tell(force=False)

    def _tell(self, *, force: bool) -> None:
        """What is lost, once a while."""
        if self._clock() < self._quiet_until and not force:
            return
        lost = self._backlog.take_lost()
        if not lost.number:
            return
        self._quiet_until = self._clock() + REPEAT_SECONDS
        logger.warning("Spans of %d requests did not get to %s: %s", lost.number, self._exporter.url, lost.why)
