"""What an endpoint finds before it looks at its request: the shared state, and whether the model is ours."""

from typing import cast

from starlette.requests import Request

from octavo.server.errors import model_not_found
from octavo.server.state import ServerState


def server_state(request: Request) -> ServerState:
    return cast("ServerState", request.app.state.server)


def check_model(state: ServerState, model: str | None) -> None:
    """
    Raises:
        ApiError: 404 for a name that is not served; no name means the one there is.
    """
    if model is not None and model != state.settings.served_model_name:
        raise model_not_found(model)
