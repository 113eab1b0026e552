"""GET /debug/requests: what was decided about requests, and when; behind the admin key (spec D20)."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from octavo.core.errors import InvalidRequestError
from octavo.engine.traces import EVENT_NUMBERS, MAX_REQUESTS, RequestEvent, RequestFacts, RequestTrace
from octavo.server.answers import json_response
from octavo.server.context import server_state
from octavo.server.endpoints import Endpoints
from octavo.server.errors import ApiError
from octavo.server.plain_numbers import plain_whole_number
from octavo.server.prompts import in_text_thread
from octavo.server.state import ServerState
from octavo.server.watching.request_log import Refusal

endpoints = Endpoints("/debug")

DEFAULT_COUNT = 100


@endpoints.get("/requests")
async def list_requests(request: Request) -> Response:
    """The requests that came last, the newest first, each with its last event. As many as may be listed take a while to
    write down, in which others are served."""
    state = server_state(request)
    state.require_ready()
    count = _count(request.query_params.get("limit", str(DEFAULT_COUNT)))
    traces = await state.engine.traces(count=count)
    refusals = state.request_log.refusals()[:count]

    def write() -> Response:
        return json_response(
            {
                "object": "list",
                "data": [_shown(state, trace) for trace in traces],
                "refused": [_shown_refusal(refusal) for refusal in refusals],
            }
        )

    return await in_text_thread(state, write)


def _count(text: str) -> int:
    count = plain_whole_number(text)
    if count is None or not 1 <= count <= MAX_REQUESTS:
        raise InvalidRequestError(f"limit must be 1 to {MAX_REQUESTS}, got {text[:80]!r}.", "limit")
    return count


@endpoints.get("/requests/{request_id:path}")
async def show_request(request: Request) -> Response:
    """All that is known of a request: ``request_id`` is its X-Request-Id, the id of its answer, or the engine's."""
    request_id: str = request.path_params["request_id"]
    state = server_state(request)
    state.require_ready()
    traces = await state.engine.traces(state.request_log.engine_ids(request_id))
    refusals = state.request_log.refusals(request_id)
    if not traces and not refusals:
        message = f"Nothing is known of a request {request_id[:128]!r}; it may be too long ago."
        raise ApiError(404, message, code="request_not_found")
    return json_response(
        {
            "id": request_id,
            "requests": [_shown(state, trace) for trace in traces],
            "refused": [_shown_refusal(refusal) for refusal in refusals],
        }
    )


def _shown(state: ServerState, trace: RequestTrace) -> dict[str, Any]:
    """``statuses``: how many choices stand where. ``*_seconds``: its times, from the arrival on."""
    facts = trace.facts
    return {
        "id": trace.request_id,
        "x_request_id": state.request_log.trace_id(trace.request_id),
        "arrival": facts.arrival,
        "tenant": facts.tenant,
        "priority": facts.priority,
        "max_queue_seconds": _seconds_until(facts.start_by, facts),
        "max_request_seconds": _seconds_until(facts.end_by, facts),
        "prompt_tokens": facts.num_prompt_tokens,
        "choices": facts.num_choices,
        "generated_tokens": trace.num_generated_tokens,
        "statuses": {status: trace.statuses.count(status) for status in sorted(set(trace.statuses))},
        "finish_reason": None if trace.statuses else trace.reason,
        "standing": trace.standing,
        "num_dropped_events": trace.num_dropped,
        "events": [_shown_event(trace, event) for event in trace.events],
    }


def _seconds_until(time: float | None, facts: RequestFacts) -> float | None:
    return None if time is None else round(time - facts.arrival, 6)


def _shown_event(trace: RequestTrace, event: RequestEvent) -> dict[str, Any]:
    """``seconds``: since the request's arrival."""
    shown: dict[str, Any] = {
        "event": event.kind,
        "time": event.time,
        "seconds": round(event.time - trace.facts.arrival, 6),
        "step": event.step,
        "choice": event.choice,
    }
    shown |= zip(EVENT_NUMBERS[event.kind], event.numbers, strict=True)
    return shown | {"reason": event.note} if event.note else shown


def _shown_refusal(refusal: Refusal) -> dict[str, Any]:
    return {
        "x_request_id": refusal.trace_id,
        "time": refusal.time,
        "status": refusal.status,
        "code": refusal.code,
        "message": refusal.message,
    }
