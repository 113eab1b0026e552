"""/dashboard: the page for people. Its files come with the package; its data comes from /debug and /metrics.

A browser sends no key by itself, so it logs in by a form, and a cookie that scripts cannot read stands for the admin
key from then on (spec D20).
"""

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response

from octavo.server.access.auth import Role, role_of
from octavo.server.access.sessions import COOKIE, SESSION_SECONDS, session_token
from octavo.server.body import read_body
from octavo.server.context import server_state
from octavo.server.endpoints import Endpoints
from octavo.server.errors import ApiError
from octavo.server.state import ServerState

endpoints = Endpoints()

PAGE, LOGIN, LOGOUT = "/dashboard", "/dashboard/login", "/dashboard/logout"
ICON, STYLE = "/dashboard/octavo.svg", "/dashboard/door.css"
FORM = (PAGE, LOGIN, ICON, STYLE)
"""Answered without a key: the page by the form, as long as no cookie comes along."""
MAX_FORM_BYTES = 8192

_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self'; style-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class Asset(NamedTuple):
    content: bytes
    media_type: str
    etag: str


@endpoints.get(PAGE)
async def show_page(request: Request) -> Response:
    """The page, for whoever has the admin key; for others the form to log in by."""
    if role_of(request) >= Role.ADMIN:
        return _page("index.html", 200)
    if not server_state(request).keyring.has_admin:
        return _page("no_key.html", 403)
    return _page("login.html", 401)


@endpoints.post(LOGIN)
async def log_in(request: Request) -> Response:
    state = server_state(request)
    form = parse_qs((await read_body(request, MAX_FORM_BYTES)).decode(errors="replace"))
    key = form.get("key", [""])[0]
    if state.keyring.sender(b"Bearer " + key.encode()).role < Role.ADMIN:
        return _page("login.html", 401, b'<p role="alert" hidden>', b'<p role="alert">')
    return _redirect(f"{COOKIE}={state.sessions.open()}; {_attributes(state)}; Max-Age={SESSION_SECONDS}")


@endpoints.post(LOGOUT)
async def log_out(request: Request) -> Response:
    state = server_state(request)
    state.sessions.end(session_token(dict(request.headers.raw)))
    return _redirect(f"{COOKIE}=; {_attributes(state)}; Max-Age=0")


@endpoints.get("/dashboard/{name}")
async def show_asset(request: Request) -> Response:
    name: str = request.path_params["name"]
    asset = _assets().get(name)
    if asset is None:
        raise ApiError(404, f"The page has no part {name[:80]!r}.", code="not_found")
    headers = {"ETag": asset.etag, "Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, headers=headers, media_type=asset.media_type)


@cache
def _assets() -> dict[str, Asset]:
    """All files that the page is made of, by name."""
    found = {}
    for folder in (files("octavo") / "data" / "dashboard", files("octavo") / "data" / "dashboard" / "vendor"):
        for file in folder.iterdir():
            media_type = _TYPES.get(file.name[file.name.rfind(".") :])
            if media_type is not None:
                content = file.read_bytes()
                found[file.name] = Asset(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return found


def _page(name: str, status: int, before: bytes = b"", after: bytes = b"") -> Response:
    """A page of the package; ``before`` in it is ``after``."""
    content = (files("octavo") / "data" / "dashboard" / name).read_bytes().replace(before, after)
    headers = {
        "Content-Security-Policy": _POLICY,
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
    }
    return Response(content, status, headers, media_type="text/html; charset=utf-8")


def _attributes(state: ServerState) -> str:
    secure = "; Secure" if state.settings.ssl_certfile is not None else ""
    return f"Path=/; HttpOnly; SameSite=Strict{secure}"


def _redirect(cookie: str) -> Response:
    return Response(status_code=303, headers={"Location": PAGE, "Set-Cookie": cookie, "Cache-Control": "no-store"})
