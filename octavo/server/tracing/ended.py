"""What spans are made of: a request that is over, without its tokens."""

from dataclasses import dataclass

from octavo.core.sampling_params import SamplingParams
from octavo.engine.messages import RequestTimes
from octavo.engine.steady_clock import steady_time
from octavo.server.ledger import Entry
from octavo.server.visit import Visit


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """``engine_id``: None where it was refused before the engine; ``request_id``: its X-Request-Id. ``times``: of its
    choices, none where it was refused; ``error``: the code of what it ended with then; ``status``: of the answer,
    where that is known. ``traceparent``, ``tracestate``: as its client sent them. Times are ``steady_time()``."""

    engine_id: str | None
    request_id: str
    arrival: float
    end: float
    traceparent: str
    tracestate: str
    error: str = ""
    status: int = 0
    times: tuple[RequestTimes, ...] = ()
    params: SamplingParams | None = None
    num_prompt_tokens: int | None = None
    tenant: str = ""


def ended_request(entry: Entry) -> EndedRequest:
    request, visit = entry.request, entry.visit
    return EndedRequest(
        request.request_id,
        visit.request_id,
        request.arrival_time,
        max((times.finished for times in entry.ended), default=steady_time()),
        visit.traceparent,
        visit.tracestate,
        entry.error,
        times=tuple(sorted(entry.ended, key=lambda times: times.index)),
        params=request.params,
        num_prompt_tokens=len(request.prompt_token_ids),
        tenant=request.tenant,
    )


def refused_request(visit: Visit) -> EndedRequest:
    """``visit`` is over, and came to an error before the engine heard of it."""
    assert visit.refusal is not None
    return EndedRequest(
        None,
        visit.request_id,
        visit.arrival,
        steady_time(),
        visit.traceparent,
        visit.tracestate,
        visit.refusal.code,
        visit.refusal.status,
    )
