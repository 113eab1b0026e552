"""The spans of a request, from the times and decisions that the engine has written down of it anyway.

    llm_request
        queue       from its arrival to the choice's first step
        prefill     from there to its first token; an event for each piece of the prompt
        preempted   from where it gave its blocks up to where it went on
        decode      from its first token to its end

Each choice has its own, which ``octavo.choice`` tells apart. No text of a client's is in them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from octavo.engine.messages import RequestTimes
from octavo.engine.traces import EVENT_NUMBERS, RequestEvent, RequestTrace
from octavo.server.tracing.ended import EndedRequest

Value = str | int | float | Sequence[str]

_OF_REQUEST = frozenset({"waits_for_grammar", "waits_for_prefix", "passed", "timed_out"})
"""Events of the whole request."""

_OF_COMPUTING = frozenset({"admitted", "forked", "chunk"})
"""Events of a choice while it is computed."""


@dataclass(frozen=True, slots=True)
class SpanEvent:
    name: str
    time: float
    attributes: dict[str, Value]


@dataclass(slots=True)
class Span:
    """Times are ``steady_time()``."""

    name: str
    start: float
    end: float
    attributes: dict[str, Value]
    events: list[SpanEvent] = field(default_factory=list)
    children: list["Span"] = field(default_factory=list)
    is_error: bool = False


def span_tree(ended: EndedRequest, trace: RequestTrace | None, model: str) -> Span:
    """``trace``: what the engine has written down, if it still knows it; ``model``: as it is served."""
    events = [] if trace is None else trace.events
    root = Span("llm_request", ended.arrival, ended.end, _attributes(ended, events, model))
    root.events = [_shown(event) for event in events if event.kind in _OF_REQUEST]
    for times in ended.times:
        root.children += _choice_spans(times, [event for event in events if event.choice == times.index])
    if trace is not None and trace.num_dropped:
        root.attributes["octavo.dropped_events"] = trace.num_dropped
    root.is_error = "error.type" in root.attributes
    return root


def _choice_spans(times: RequestTimes, events: Sequence[RequestEvent]) -> Iterator[Span]:
    choice: dict[str, Value] = {"octavo.choice": times.index}
    scheduled, first = times.scheduled, times.first_token
    yield Span("queue", times.arrival, times.finished if scheduled is None else scheduled, dict(choice))
    computing = [event for event in events if event.kind in _OF_COMPUTING]
    if scheduled is not None:
        end = times.finished if first is None else first
        before = [_shown(event) for event in computing if event.time <= end]
        yield Span("prefill", scheduled, end, dict(choice), before)
    yield from _preemptions(events, times.finished, choice)
    if first is not None:
        tokens = {"gen_ai.usage.completion_tokens": times.num_generation_tokens}
        after = [_shown(event) for event in computing if event.time > first]
        yield Span("decode", first, times.finished, choice | tokens, after)


def _preemptions(events: Sequence[RequestEvent], end: float, choice: dict[str, Value]) -> Iterator[Span]:
    """``events``: of one choice; ``end``: of it, where it did not go on."""
    span: Span | None = None
    for event in events:
        if event.kind == "preempted":
            span = Span("preempted", event.time, end, choice | _numbers(event))
        elif event.kind == "resumed" and span is not None:
            span.end = event.time
            span.attributes |= _numbers(event)
            yield span
            span = None
    if span is not None:
        yield span


def _attributes(ended: EndedRequest, events: Sequence[RequestEvent], model: str) -> dict[str, Value]:
    """Names as vLLM has them; Octavo's own begin with ``octavo.``."""
    attributes: dict[str, Value | None] = {
        "gen_ai.request.id": ended.engine_id,
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.usage.prompt_tokens": ended.num_prompt_tokens,
        "octavo.x_request_id": ended.request_id,
        "octavo.tenant": ended.tenant or None,
        "octavo.cached_tokens": next((event.numbers[0] for event in events if event.kind == "admitted"), None),
        "http.response.status_code": ended.status or None,
        "error.type": _error(ended, events),
    }
    if ended.params is not None:
        attributes |= {
            "gen_ai.request.max_tokens": ended.params.max_tokens,
            "gen_ai.request.temperature": ended.params.temperature,
            "gen_ai.request.top_p": ended.params.top_p,
            "gen_ai.request.n": ended.params.n,
        }
    return {name: value for name, value in (attributes | _outcome(ended)).items() if value is not None}


def _outcome(ended: EndedRequest) -> dict[str, Value | None]:
    """Of several choices the first to get there counts, and the last to end."""
    if not ended.times:
        return {}
    scheduled = min((times.scheduled for times in ended.times if times.scheduled is not None), default=None)
    first = min((times.first_token for times in ended.times if times.first_token is not None), default=None)
    return {
        "gen_ai.usage.completion_tokens": sum(times.num_generation_tokens for times in ended.times),
        "gen_ai.usage.num_sequences": len(ended.times),
        "gen_ai.response.finish_reasons": [times.finish_reason for times in ended.times],
        "gen_ai.latency.e2e": ended.end - ended.arrival,
        "gen_ai.latency.time_in_queue": _between(ended.arrival, scheduled),
        "gen_ai.latency.time_to_first_token": _between(ended.arrival, first),
        "gen_ai.latency.time_in_model_prefill": _between(scheduled, first),
        "gen_ai.latency.time_in_model_decode": _between(first, ended.end),
        "gen_ai.latency.time_in_model_inference": _between(scheduled, ended.end),
    }


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def _error(ended: EndedRequest, events: Sequence[RequestEvent]) -> str | None:
    if ended.error:
        return ended.error
    if all(times.finish_reason != "error" for times in ended.times):
        return None
    return "timed_out" if any(event.kind == "timed_out" for event in events) else "engine_error"


def _shown(event: RequestEvent) -> SpanEvent:
    return SpanEvent(event.kind, event.time, _numbers(event) | {"octavo.step": event.step})


def _numbers(event: RequestEvent) -> dict[str, Value]:
    return {f"octavo.{name}": n for name, n in zip(EVENT_NUMBERS[event.kind], event.numbers, strict=True)}
