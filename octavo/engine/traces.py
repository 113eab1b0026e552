"""What was decided about requests, and when: enough of it to see afterwards why one took as long as it did.

Bounded in every way: the open requests and so many that have ended, of which the first go first, and so many events of
each, of which the first and the last stay. A step that only decodes writes nothing.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, NamedTuple

from octavo.core.tenants import DEFAULT_TENANT

EventKind = Literal[
    "arrived",
    "waits_for_grammar",
    "refused",
    "admitted",
    "forked",
    "resumed",
    "chunk",
    "passed",
    "waits_for_prefix",
    "preempted",
    "first_token",
    "timed_out",
    "finished",
]

EVENT_NUMBERS: dict[EventKind, tuple[str, ...]] = {
    "arrived": ("prompt_tokens", "choices"),
    "waits_for_grammar": (),
    "refused": (),
    "admitted": ("cached_tokens", "tokens"),
    "forked": ("shared_tokens",),
    "resumed": ("kept_tokens", "tokens"),
    "chunk": ("from_token", "tokens"),
    "passed": ("by", "so_far"),
    "waits_for_prefix": (),
    "preempted": ("freed_blocks", "swapped_tokens", "lost_tokens"),
    "first_token": (),
    "timed_out": (),
    "finished": ("generated_tokens", "preemptions"),
}
"""What the numbers of an event are."""

MAX_REQUESTS = 1024
"""That have ended."""
MAX_FIRST_EVENTS = 32
MAX_LAST_EVENTS = 96


class RequestEvent(NamedTuple):
    """``time``: seconds since the epoch; ``step``: the step that the decision was taken for; ``numbers``: see
    EVENT_NUMBERS; ``note``: a reason in words."""

    time: float
    step: int
    choice: int
    kind: EventKind
    numbers: tuple[int, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What a request came with. ``arrival``, ``start_by``, ``end_by``: seconds since the epoch; None: no such
    bound."""

    arrival: float
    num_prompt_tokens: int
    num_choices: int
    tenant: str = DEFAULT_TENANT
    priority: int = 0
    start_by: float | None = None
    end_by: float | None = None


@dataclass(slots=True)
class RequestTrace:
    """One request and what was decided about it, oldest first; ``num_dropped`` events are forgotten after the first
    MAX_FIRST_EVENTS. ``statuses``: of the choices that have not ended. ``reason``: how it ended. ``standing``: of one
    that has not, what decides when it goes next (``Scheduler.standing``)."""

    request_id: str
    facts: RequestFacts
    events: list[RequestEvent]
    num_dropped: int
    statuses: list[str]
    num_generated_tokens: int
    reason: str
    standing: dict[str, int | float] = field(default_factory=dict)


FlatEvent = tuple[float | int | str, ...]
"""Time, step, choice, kind, note, numbers, as in RequestEvent. The garbage collector leaves plain tuples of plain
values alone once it has seen them."""


@dataclass(slots=True, eq=False)
class _Record:
    facts: RequestFacts
    num_generated: int = 0
    num_events: int = 0
    reason: str = ""
    first: list[FlatEvent] = field(default_factory=list)
    last: deque[FlatEvent] | None = None


class EventLog:
    """Records by request id. A request is opened, noted and ended; open ones are always kept."""

    def __init__(self, max_requests: int = MAX_REQUESTS) -> None:
        self._max_requests = max_requests
        self._records: dict[str, _Record] = {}
        self._ended: deque[tuple[str, _Record]] = deque()
        self.told: deque[tuple[str, FlatEvent]] | None = None
        """Every event is put in here too, where somebody watches."""

    def __len__(self) -> int:
        return len(self._records)

    def open(self, request_id: str, facts: RequestFacts) -> None:
        self._records.pop(request_id, None)  # one of an earlier request of this name
        self._records[request_id] = _Record(facts)

    def note(self, request_id: str, event: FlatEvent) -> None:
        """Ids without a record are ignored."""
        record = self._records.get(request_id)
        if record is None:
            return
        if self.told is not None:
            self.told.append((request_id, event))
        record.num_events += 1
        if len(record.first) < MAX_FIRST_EVENTS:
            record.first.append(event)
            return
        if record.last is None:
            record.last = deque(maxlen=MAX_LAST_EVENTS)
        record.last.append(event)

    def end_choice(self, request_id: str, num_generated_tokens: int, reason: str) -> None:
        """One choice has ended, ``reason`` is how; the last one's stands."""
        record = self._records.get(request_id)
        if record is not None:
            record.num_generated += num_generated_tokens
            record.reason = reason

    def end(self, request_id: str) -> None:
        """The request has ended: it may be forgotten."""
        record = self._records.get(request_id)
        if record is None:
            return
        self._ended.append((request_id, record))
        while len(self._ended) > self._max_requests:
            oldest_id, oldest = self._ended.popleft()
            if self._records.get(oldest_id) is oldest:
                del self._records[oldest_id]

    def trace(self, request_id: str, num_last: int | None = None) -> RequestTrace | None:
        """What is known of a request, with its ``num_last`` last events (None: all); nothing of how its choices
        stand."""
        record = self._records.get(request_id)
        if record is None:
            return None
        kept = (*record.first, *(record.last or ()))
        told = kept if num_last is None else kept[-num_last:]
        return RequestTrace(
            request_id,
            record.facts,
            [as_event(*flat) for flat in told],
            record.num_events - len(kept),
            [],
            record.num_generated,
            record.reason,
        )

    def latest(self, count: int) -> list[str]:
        """Ids of the requests that came last, the newest first."""
        return list(islice(reversed(self._records), count))


def as_event(time: Any, step: Any, choice: Any, kind: Any, note: Any, *numbers: Any) -> RequestEvent:
    return RequestEvent(time, step, choice, kind, numbers, note)
