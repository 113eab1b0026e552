"""The endpoints of one family: which function answers at which path."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Endpoint = Callable[[Request], Awaitable[Response]]


class Endpoints:
    """Each method is a decorator; ``path`` may hold ``{name}``, and ``{name:path}`` for what has slashes in it.

    ``prefix``: begins every path.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self.routes: list[Route] = []

    def get(self, path: str) -> Callable[[Endpoint], Endpoint]:
        return self._at("GET", path)

    def post(self, path: str) -> Callable[[Endpoint], Endpoint]:
        return self._at("POST", path)

    def delete(self, path: str) -> Callable[[Endpoint], Endpoint]:
        return self._at("DELETE", path)

    def _at(self, method: str, path: str) -> Callable[[Endpoint], Endpoint]:
        def add(endpoint: Endpoint) -> Endpoint:
            self.routes.append(Route(self._prefix + path, endpoint, methods=[method]))
            return endpoint

        return add
