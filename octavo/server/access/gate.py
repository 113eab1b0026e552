"""One ASGI wrapper around the application: the key first, an id for each request, and a line of it in the log."""

import re
import time
import uuid
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.engine.intake import TENANT_NAME
from octavo.engine.log_format import served_request_id
from octavo.server.access.auth import Role, Sender
from octavo.server.access.sessions import session_token
from octavo.server.errors import ApiError, error_response
from octavo.server.request_line import log_request
from octavo.server.state import ServerState
from octavo.server.visit import Visit
from octavo.server.watching.request_log import Refusal

_CLEAN_ID = re.compile(rb"[A-Za-z0-9._:/-]{1,128}\Z")
_KEY_ERROR = "The API key is missing or wrong; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
_ADMIN_PATHS = ("/admin/", "/debug/", "/dashboard/")
_PAGE_PATHS = ("/dashboard", "/debug/", "/metrics", "/v1/")
"""What a browser may ask for that has logged in."""


class Gate:
    """Checks the key before anything is read, and labels the answer with an X-Request-Id.

    A client's id serves tracing alone (spec D15): it is sent back if it is short and plain, replaced otherwise.
    """

    def __init__(self, app: ASGIApp, state: ServerState, open_paths: frozenset[str]) -> None:
        header = state.settings.tenant_header
        self._app = app
        self._state = state
        self._tenant_header = header.lower().encode() if header else None
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.monotonic()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = headers.get(b"x-request-id", b"")
        if not _CLEAN_ID.match(request_id):
            request_id = uuid.uuid4().hex.encode()
        visit = Visit(request_id.decode(), *(_trace_context(scope) if self._state.tracing else ()))
        served_request_id.set(visit.request_id)

        async def labelled_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
                visit.status = message["status"]
            await send(message)

        sender = self._sender(scope["path"], headers)
        named = [value for name, value in scope["headers"] if name == self._tenant_header]
        refusal = self._refusal(scope["path"], sender.role, named) or self._excess(scope, sender, visit)
        tenant = named[0].decode("latin-1") if named else sender.tenant
        try:
            if refusal is None:
                found = sender._replace(tenant=tenant)
                scope.setdefault("state", {}).update(sender=found, visit=visit)
                await self._app(_as_get(scope), receive, labelled_send)
            else:
                response = error_response(refusal, scope["path"])
                if refusal.status == HTTPStatus.UNAUTHORIZED:
                    response.headers["WWW-Authenticate"] = "Bearer"
                await response(scope, receive, labelled_send)
        finally:
            self._close(scope, visit, time.monotonic() - start)

    def _close(self, scope: Scope, visit: Visit, seconds: float) -> None:
        """Its answer has been sent, in ``seconds``. Who has no key has no refusal either, and so no trace."""
        settings, tracing = self._state.settings, self._state.tracing
        if settings.log_requests:
            tokenizer = self._state.tokenizer if settings.log_request_text and visit.generation else None
            log_request(scope, visit, seconds, tokenizer)
        is_refused = visit.refusal is not None and not visit.reached_engine
        if tracing is not None and is_refused and scope["path"].startswith("/v1/"):
            tracing.refuse(visit)

    def _sender(self, path: str, headers: Mapping[bytes, bytes]) -> Sender:
        sender = self._state.keyring.sender(_credentials(headers))
        if path.startswith(_PAGE_PATHS) and self._state.sessions.holds(session_token(headers)):
            return Sender(Role.ADMIN)
        return sender

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
            has_admin = self._state.keyring.has_admin
            reason = "needs the admin key" if has_admin else "is off: no admin key is set (--admin-key)"
            return ApiError(403, f"{path[:200]} {reason}.", code="admin_only")
        return None

    def _excess(self, scope: Scope, sender: Sender, visit: Visit) -> ApiError | None:
        """A request is more than its tenant may send a minute. What is asked of the server itself is not counted."""
        if sender.allowance is None or scope["method"] != "POST":
            return None
        try:
            sender.allowance.take_request()
        except ApiError as error:
            self._state.metrics.count_refused("rate_limit")
            visit.refusal = Refusal(time.time(), visit.request_id, error.status, error.code, error.message)
            self._state.request_log.note_refusal(visit.refusal)
            return error
        return None


def _as_get(scope: Scope) -> Scope:
    """HEAD is answered as GET; the HTTP server, which knows what was asked, leaves out the body."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope


def _trace_context(scope: Scope) -> tuple[str, str]:
    """The headers traceparent, where there is one, and tracestate, of which there may be several."""
    parents = [value for name, value in scope["headers"] if name == b"traceparent"]
    states = [value for name, value in scope["headers"] if name == b"tracestate"]
    return (parents[0].decode("latin-1"), b",".join(states).decode("latin-1")) if len(parents) == 1 else ("", "")


def _credentials(headers: Mapping[bytes, bytes]) -> bytes:
    """As in an Authorization header; Anthropic's clients send the key in one of its own."""
    own = headers.get(b"x-api-key")
    return headers.get(b"authorization", b"" if own is None else b"Bearer " + own)
