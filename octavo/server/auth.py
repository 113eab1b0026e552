"""The keys, and an id for each request: one ASGI wrapper around the application."""

import enum
import hmac
import re
import uuid
from collections.abc import Sequence
from http import HTTPStatus
from typing import NamedTuple

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.core.tenants import DEFAULT_TENANT
from octavo.engine.intake import TENANT_NAME
from octavo.server.errors import ApiError, error_response
from octavo.server.settings import ServerSettings

_CLEAN_ID = re.compile(rb"[A-Za-z0-9._:/-]{1,128}\Z")
_KEY_ERROR = "The API key is missing or wrong; send it as 'Authorization: Bearer KEY'."
_ADMIN_PATHS = ("/admin/", "/debug/")


class Role(enum.IntEnum):
    """What a key allows; each role may do all that those before it may."""

    NOBODY = 0
    CLIENT = 1
    PINNER = 2
    ADMIN = 3


class Sender(NamedTuple):
    """Who sends a request: what it may do, and the name of its tenant, which is not its key."""

    role: Role
    tenant: str = DEFAULT_TENANT


class Keyring:
    """Whose key it is. Without an API key everybody is a client; with ``allow_pins`` every client may pin."""

    def __init__(self, settings: ServerSettings) -> None:
        client = Role.PINNER if settings.allow_pins else Role.CLIENT
        self._keys = [
            *((key.encode(), Sender(Role.ADMIN)) for key in (settings.admin_key,) if key),
            *((key.encode(), Sender(Role.PINNER)) for key in settings.pin_keys),
            *((key.encode(), Sender(client, name)) for name, key in settings.tenant_keys),
            *((key.encode(), Sender(client)) for key in (settings.api_key,) if key),
        ]
        self._stranger = Sender(Role.NOBODY if settings.needs_key else client)
        self.has_admin = settings.admin_key is not None

    def sender(self, authorization: bytes) -> Sender:
        """Whose the key in an Authorization header is, and the highest role of it, or that of who has none."""
        scheme, _, sent = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            return self._stranger
        # All keys are looked at, and compare_digest takes the same time wherever two differ.
        found = [sender for key, sender in self._keys if hmac.compare_digest(sent.strip(), key)]
        tenants = (sender.tenant for sender in found if sender.tenant != DEFAULT_TENANT)
        role = max([sender.role for sender in found], default=self._stranger.role)
        return Sender(max(role, self._stranger.role), next(tenants, DEFAULT_TENANT))


def role_of(request: Request) -> Role:
    """What the sender of a request may do."""
    sender: Sender = request.state.sender
    return sender.role


def tenant_of(request: Request) -> str:
    """The name of its tenant."""
    sender: Sender = request.state.sender
    return sender.tenant


def trace_id_of(request: Request) -> str:
    """The X-Request-Id that the answer carries."""
    trace_id: str = request.state.trace_id
    return trace_id


class Gate:
    """Checks the key before anything is read, and labels the answer with an X-Request-Id.

    A client's id serves tracing alone (spec D15): it is sent back if it is short and plain, replaced otherwise.
    """

    def __init__(
        self, app: ASGIApp, keyring: Keyring, open_paths: frozenset[str], tenant_header: str | None = None
    ) -> None:
        self._app = app
        self._keyring = keyring
        self._tenant_header = tenant_header.lower().encode() if tenant_header else None
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

        sender = self._keyring.sender(headers.get(b"authorization", b""))
        named = [value for name, value in scope["headers"] if name == self._tenant_header]
        refusal = self._refusal(scope["path"], sender.role, named)
        if refusal is None:
            tenant = named[0].decode("latin-1") if named else sender.tenant
            scope.setdefault("state", {}).update(sender=Sender(sender.role, tenant), trace_id=request_id.decode())
            await self._app(scope, receive, labelled_send)
        else:
            response = error_response(refusal)
            if refusal.status == HTTPStatus.UNAUTHORIZED:
                response.headers["WWW-Authenticate"] = "Bearer"
            await response(scope, receive, labelled_send)

    def _refusal(self, path: str, role: Role, tenants: Sequence[bytes]) -> ApiError | None:
        """``tenants``: as the header names them, where that counts. Of two nobody knows which one a gateway has set."""
        if path in self._open_paths:
            return None
        if role is Role.NOBODY:
            return ApiError(401, _KEY_ERROR, code="invalid_api_key")
        if len(tenants) > 1:
            return ApiError(400, "The header that names the tenant comes more than once.", code="invalid_tenant")
        if tenants and not TENANT_NAME.match(tenants[0].decode("latin-1")):
            message = "The header that names the tenant holds other than 1 to 64 letters, digits and any of ._:@/-."
            return ApiError(400, message, code="invalid_tenant")
        if path.startswith(_ADMIN_PATHS) and role < Role.ADMIN:
            reason = "needs the admin key" if self._keyring.has_admin else "is off: no admin key is set (--admin-key)"
            return ApiError(403, f"{path[:200]} {reason}.", code="admin_only")
        return None
