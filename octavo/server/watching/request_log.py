"""By which ids clients know their requests, and which were refused before they reached the engine; bounded."""

from collections import OrderedDict, deque
from dataclasses import dataclass, field

MAX_NAMES = 4096
MAX_PER_NAME = 64
"""A client may send one id again and again; its latest requests count."""
MAX_REFUSALS = 256


@dataclass(frozen=True, slots=True)
class Refusal:
    """``time``: seconds since the epoch."""

    time: float
    trace_id: str
    status: int
    code: str
    message: str


@dataclass(slots=True)
class RequestLog:
    """``trace_id``: the X-Request-Id of a request; ``answer_id``: the id in its answer's body."""

    _names: OrderedDict[str, deque[str]] = field(default_factory=OrderedDict)
    _trace_ids: OrderedDict[str, str] = field(default_factory=OrderedDict)
    _refusals: deque[Refusal] = field(default_factory=lambda: deque(maxlen=MAX_REFUSALS))

    def note_engine_id(self, engine_id: str, answer_id: str, trace_id: str) -> None:
        """A prompt has gone to the engine."""
        for name in {answer_id, trace_id}:
            ids = self._names.setdefault(name, deque(maxlen=MAX_PER_NAME))
            ids.append(engine_id)
            self._names.move_to_end(name)
        self._trace_ids[engine_id] = trace_id
        for kept in (self._names, self._trace_ids):
            while len(kept) > MAX_NAMES:
                kept.popitem(last=False)

    def note_refusal(self, refusal: Refusal) -> None:
        self._refusals.append(refusal)

    def engine_ids(self, name: str) -> list[str]:
        """Of the requests that go by this name; newest last. The engine's own ids are names too."""
        return list(self._names.get(name, (name,)))

    def trace_id(self, engine_id: str) -> str | None:
        return self._trace_ids.get(engine_id)

    def refusals(self, trace_id: str | None = None) -> list[Refusal]:
        """Those of requests with this id, or all; newest first."""
        return [each for each in reversed(self._refusals) if trace_id is None or each.trace_id == trace_id]
