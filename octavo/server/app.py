"""The ASGI application: endpoints, error bodies, the key, who may ask from a browser."""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from octavo.server import admin, completions, embeddings, openapi, system, tokenize
from octavo.server.access.gate import Gate
from octavo.server.chat import routes as chat
from octavo.server.errors import error_handlers
from octavo.server.messages import routes as messages
from octavo.server.responses import routes as responses
from octavo.server.state import ServerState
from octavo.server.watching import dashboard, debug, pool

ALWAYS_OPEN = frozenset({"/health", *dashboard.FORM})
"""The form to log in by is open, and what it sends; the page is not."""


def create_app(state: ServerState) -> ASGIApp:
    """All endpoints over ``state``, behind the keys if the settings have one (spec D20)."""
    families = (
        system,
        completions,
        chat,
        messages,
        responses,
        embeddings,
        tokenize,
        admin,
        debug,
        pool,
        openapi,
        dashboard,
    )
    routes = [route for family in families for route in family.endpoints.routes]
    app = Starlette(routes=routes, exception_handlers=error_handlers())
    app.router.redirect_slashes = False
    app.state.server = state
    open_paths = ALWAYS_OPEN | {"/metrics"} if state.settings.open_metrics else ALWAYS_OPEN
    gate = Gate(app, state, open_paths)
    origins = state.settings.allowed_origins
    return _for_browsers(gate, origins) if origins else gate


def _for_browsers(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Pages of ``origins`` may ask. A browser asks beforehand whether it may, without a key, so this is outermost."""
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=("X-Request-Id", "Retry-After"),
    )
