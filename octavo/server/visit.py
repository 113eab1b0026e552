"""One HTTP request from when it has come to when its answer has been sent, and what came of it."""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastapi import Request

from octavo.engine.messages import RequestTimes
from octavo.server.watching.request_log import Refusal

if TYPE_CHECKING:
    from octavo.server.generation import Generation


@dataclass(slots=True)
class Visit:
    """``request_id``: the X-Request-Id that the answer carries; ``status``: of the answer, 0 while there is none;
    ``refusal``: why it was refused. ``generation``: what the engine was asked for; ``ended``: its choices that have
    ended."""

    request_id: str
    status: int = 0
    arrival: float = field(default_factory=time.time)
    refusal: Refusal | None = None
    generation: "Generation | None" = None
    ended: list[RequestTimes] = field(default_factory=list)


def visit_of(request: Request) -> Visit:
    visit: Visit = request.state.visit
    return visit
