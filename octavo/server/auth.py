"""The keys, and an id for each request: one ASGI wrapper around the application."""

import enum
import hmac
import re
import uuid
from http import HTTPStatus

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.errors import ApiError, error_response
from octavo.server.settings import ServerSettings

_CLEAN_ID = re.compile(rb"[A-Za-z0-9._:/-]{1,128}\Z")
_KEY_ERROR = "The API key is missing or wrong; send it as 'Authorization: Bearer KEY'."
_ADMIN_PATH = "/admin/"


class Role(enum.IntEnum):
    """What a key allows; each role may do all that those before it may."""

    NOBODY = 0
    CLIENT = 1
    PINNER = 2
    ADMIN = 3


class Keyring:
    """Whose key it is. Without an API key everybody is a client; with ``allow_pins`` every client may pin."""

    def __init__(self, settings: ServerSettings) -> None:
        self._keys = [
            *((key.encode(), Role.ADMIN) for key in (settings.admin_key,) if key),
            *((key.encode(), Role.PINNER) for key in settings.pin_keys),
        ]
        client = Role.PINNER if settings.allow_pins else Role.CLIENT
        if settings.api_key:
            self._keys.append((settings.api_key.encode(), client))
        self._stranger = Role.NOBODY if settings.api_key else client
        self.has_admin = settings.admin_key is not None

    def role(self, authorization: bytes) -> Role:
        """The highest role of the key in an Authorization header, or that of who has none."""
        scheme, _, sent = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            return self._stranger
        # All keys are looked at, and compare_digest takes the same time wherever two differ.
        roles = [role for key, role in self._keys if hmac.compare_digest(sent.strip(), key)]
        return max([*roles, self._stranger])


def role_of(request: Request) -> Role:
    """What the sender of a request may do."""
    role: Role = request.state.role
    return role


class Gate:
    """Checks the key before anything is read, and labels the answer with an X-Request-Id.

    A client's id serves tracing alone (spec D15): it is sent back if it is short and plain, replaced otherwise.
    """

    def __init__(self, app: ASGIApp, keyring: Keyring, open_paths: frozenset[str]) -> None:
        self._app = app
        self._keyring = keyring
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

        role = self._keyring.role(headers.get(b"authorization", b""))
        refusal = self._refusal(scope["path"], role)
        if refusal is None:
            scope.setdefault("state", {})["role"] = role
            await self._app(scope, receive, labelled_send)
        else:
            response = error_response(refusal)
            if refusal.status == HTTPStatus.UNAUTHORIZED:
                response.headers["WWW-Authenticate"] = "Bearer"
            await response(scope, receive, labelled_send)

    def _refusal(self, path: str, role: Role) -> ApiError | None:
        if path in self._open_paths:
            return None
        if role is Role.NOBODY:
            return ApiError(401, _KEY_ERROR, code="invalid_api_key")
        if path.startswith(_ADMIN_PATH) and role < Role.ADMIN:
            reason = "needs the admin key" if self._keyring.has_admin else "is off: no admin key is set (--admin-key)"
            return ApiError(403, f"{path[:200]} {reason}.", code="admin_only")
        return None
