"""One HTTP request from when it has come to when its answer has been sent, and what came of it."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import Request

from octavo.engine.messages import RequestTimes
from octavo.engine.steady_clock import steady_time
from octavo.server.watching.request_log import Refusal

if TYPE_CHECKING:
    from octavo.server.generation import Generation


@dataclass(slots=True)
class Visit:
    """``request_id``: the X-Request-Id that the answer carries; ``traceparent``, ``tracestate``: the client's place in
    a trace (W3C), as it says, where requests are traced. ``status``: of the answer, 0 while there is none;
    ``refusal``: why it was refused. ``generation``: what the engine was to be asked for, and has been, if
    ``reached_engine``; ``ended``: its choices that have
    ended."""

    request_id: str
    traceparent: str = ""
    tracestate: str = ""
    status: int = 0
    arrival: float = field(default_factory=steady_time)
    refusal: Refusal | None = None
    generation: "Generation | None" = None
    reached_engine: bool = False
    ended: list[RequestTimes] = field(default_factory=list)


def visit_of(request: Request) -> Visit:
    visit: Visit = request.state.visit
    return visit
