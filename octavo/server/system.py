"""Endpoints about the server itself: models, health, load, version, metrics."""

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import Response

from octavo import __version__
from octavo.core.errors import InvalidRequestError
from octavo.server.answers import json_response
from octavo.server.context import server_state
from octavo.server.endpoints import Endpoints
from octavo.server.errors import unavailable
from octavo.server.state import Phase

endpoints = Endpoints()

PROBES = ("ready", "live")


@endpoints.get("/v1/models")
async def list_models(request: Request) -> Response:
    state = server_state(request)
    state.require_ready()
    name = state.settings.served_model_name
    model = {
        "id": name,
        "object": "model",
        "created": state.started_at,
        "owned_by": "octavo",
        "root": name,
        "parent": None,
        "max_model_len": state.engine.limits.max_model_len,
    }
    return json_response({"object": "list", "data": [model]})


@endpoints.get("/health")
@endpoints.get("/ping")
@endpoints.post("/ping")
async def health(request: Request) -> Response:
    """200 while requests are served; 503 while loading, draining, dead, or not heard from.

    With ``?probe=live`` 503 only where no waiting helps: the engine is dead, or not heard from. So a supervisor that
    ends what is not alive leaves alone what still loads, drains or starts its engine again.
    """
    state = server_state(request)
    probe = request.query_params.get("probe", PROBES[0])
    if probe not in PROBES:
        raise InvalidRequestError(f"probe must be one of {', '.join(PROBES)}, got {probe[:80]!r}.", "probe")
    if probe == "live" and state.phase in (Phase.LOADING, Phase.RESTARTING):
        return Response(status_code=200)
    if probe == "ready" or state.phase is Phase.DEAD:
        state.require_ready()
    if not await state.engine.child.is_responsive():
        raise unavailable("The engine process does not answer.")
    return Response(status_code=200)


@endpoints.get("/load")
async def load(request: Request) -> Response:
    """Requests that have not ended."""
    return json_response({"server_load": server_state(request).engine.num_open})


@endpoints.get("/version")
async def version(_request: Request) -> Response:
    return json_response({"version": __version__})


@endpoints.get("/metrics")
async def metrics(request: Request) -> Response:
    return Response(server_state(request).metrics.render(), media_type=CONTENT_TYPE_PLAIN_0_0_4)
