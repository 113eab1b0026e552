"""The ASGI application: endpoints, error bodies, the key."""

from fastapi import FastAPI
from starlette.types import ASGIApp

from octavo.server import admin, chat, completions, debug, system, tokenize
from octavo.server.auth import Gate, Keyring
from octavo.server.errors import install_error_handlers
from octavo.server.state import ServerState

ALWAYS_OPEN = frozenset({"/health"})


def create_app(state: ServerState) -> ASGIApp:
    """All endpoints over ``state``, behind the keys if the settings have one (spec D20)."""
    app = FastAPI(title="Octavo", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.server = state
    install_error_handlers(app)
    for family in (system, completions, chat, tokenize, admin, debug):
        app.include_router(family.router)
    open_paths = ALWAYS_OPEN | {"/metrics"} if state.settings.open_metrics else ALWAYS_OPEN
    return Gate(app, Keyring(state.settings), open_paths, state.settings.tenant_header)
