"""The key, and an id for each request: one ASGI wrapper around the application."""

import hmac
import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.errors import ApiError, error_response

_CLEAN_ID = re.compile(rb"[A-Za-z0-9._:/-]{1,128}\Z")
_KEY_ERROR = "The API key is missing or wrong; send it as 'Authorization: Bearer KEY'."


class Gate:
    """Checks the key before anything is read, and labels the answer with an X-Request-Id.

    A client's id serves tracing alone (spec D15): it is sent back if it is short and plain, replaced otherwise.
    """

    def __init__(self, app: ASGIApp, api_key: str | None, open_paths: frozenset[str]) -> None:
        self._app = app
        self._key = api_key.encode() if api_key else None
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = headers.get(b"x-request-id", b"")
        if not _CLEAN_ID.match(request_id):
            request_id = uuid.uuid4().hex.encode()

        async def labelled_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        if self._allows(scope["path"], headers.get(b"authorization", b"")):
            await self._app(scope, receive, labelled_send)
        else:
            response = error_response(ApiError(401, _KEY_ERROR, code="invalid_api_key"))
            response.headers["WWW-Authenticate"] = "Bearer"
            await response(scope, receive, labelled_send)

    def _allows(self, path: str, authorization: bytes) -> bool:
        if self._key is None or path in self._open_paths:
            return True
        scheme, _, key = authorization.partition(b" ")
        # compare_digest takes the same time wherever the two differ.
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key)
