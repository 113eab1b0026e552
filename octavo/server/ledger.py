"""Whose each request in the engine is, until the engine has told how all of its choices have ended."""

from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.engine.client import OutputsListener
from octavo.engine.messages import EngineOutputs, EngineRequest, RequestTimes
from octavo.server.visit import Visit

MAX_OPEN = 65_536
"""Of more, those that came first are forgotten: an engine that has died never tells how they ended."""


@dataclass(slots=True)
class Entry:
    """``ended``: its choices that have ended; ``error``: the code of what it ended with, where none will."""

    request: EngineRequest
    visit: Visit
    ended: list[RequestTimes] = field(default_factory=list)
    error: str = ""


class Ledger:
    """``on_end`` is told of each request once nothing more will come of it."""

    def __init__(self, on_end: Callable[[Entry], None] | None = None) -> None:
        self._on_end = on_end
        self._open: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._open)

    def observing(self, listener: OutputsListener) -> OutputsListener:
        """What is to be told of the engine's outputs: ``listener``, and this."""

        def observe(outputs: EngineOutputs, iterations: list[int]) -> None:
            listener(outputs, iterations)
            for times in outputs.finished:
                self._note(times)

        return observe

    def begin(self, request: EngineRequest, visit: Visit) -> None:
        self._open[request.request_id] = Entry(request, visit)
        visit.reached_engine = True
        if len(self._open) > MAX_OPEN:
            del self._open[next(iter(self._open))]

    def fail(self, request_id: str, code: str) -> None:
        """The engine has refused it. One that it has refused after some of its choices have ended is told of when all
        have."""
        entry = self._open.get(request_id)
        if entry is not None and not entry.ended:
            entry.error = code
            self._end(entry)

    def lose(self, request_id: str, code: str) -> int:
        """The engine is gone. How many of its choices had not ended?"""
        entry = self._open.get(request_id)
        if entry is None:
            return 0
        entry.error = code
        self._end(entry)
        return entry.request.num_choices - len(entry.ended)

    def _note(self, times: RequestTimes) -> None:
        entry = self._open.get(times.request_id)
        if entry is None:
            return
        entry.ended.append(times)
        entry.visit.ended.append(times)
        if len(entry.ended) == entry.request.num_choices:
            self._end(entry)

    def _end(self, entry: Entry) -> None:
        del self._open[entry.request.request_id]
        if self._on_end is not None:
            self._on_end(entry)
