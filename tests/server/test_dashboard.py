"""The page's door: who gets it, how a browser logs in, and what a cookie is good for."""

import hashlib
import json
import re
import subprocess
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from octavo.server.access.sessions import COOKIE, MAX_SESSIONS, SESSION_SECONDS, Sessions
from tests.server.test_auth import app_client
from tests.support.debian import debian_program

DATA = Path(__file__).parents[2] / "octavo" / "data" / "dashboard"
UPLOT = "uplot@1.6.32"


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with app_client(api_keys=("plain",), admin_key="boss") as opened:
        yield opened


async def log_in(client: httpx.AsyncClient, key: str = "boss") -> httpx.Response:
    return await client.post("/dashboard/login", data={"key": key})


async def test_without_a_key_there_is_a_form(client: httpx.AsyncClient) -> None:
    answer = await client.get("/dashboard")
    assert answer.status_code == 401
    assert 'action="/dashboard/login"' in answer.text
    for path in re.findall(r'<link [^>]*href="([^"]+)"', answer.text):
        assert (await client.get(path)).status_code == 200, path
    for headers in ({"Authorization": "Bearer plain"}, {"Authorization": "Bearer wrong"}):
        assert (await client.get("/dashboard", headers=headers)).status_code == 401
    assert (await client.get("/dashboard", headers={"Authorization": "Bearer boss"})).status_code == 200


async def test_logging_in_and_out(client: httpx.AsyncClient) -> None:
    for key in ("", "plain", "wrong", "bös"):
        failed = await log_in(client, key)
        assert failed.status_code == 401
        assert '<p role="alert">' in failed.text
        assert "set-cookie" not in failed.headers
    answer = await log_in(client)
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(re.split("; ", cookie))
    assert "Secure" not in cookie
    assert "boss" not in cookie
    assert (await client.get("/dashboard")).status_code == 200
    token = client.cookies[COOKIE]
    out = await client.post("/dashboard/logout")
    assert out.status_code == 303
    assert COOKIE not in client.cookies
    assert (await client.get("/dashboard", headers={"Cookie": f"{COOKIE}={token}"})).status_code == 401


async def test_what_the_cookie_opens(client: httpx.AsyncClient) -> None:
    await log_in(client)
    assert (await client.get("/metrics")).status_code == 200
    for path in ("/debug/pool", "/debug/requests", "/v1/models"):
        assert (await client.get(path)).status_code == 503  # past the key: it is still loading
    assert (await client.post("/v1/chat/completions", json={})).status_code == 503
    for path in ("/admin/pins", "/version", "/load"):
        assert (await client.get(path)).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://test:8080"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_pages_of_others_cannot_use_it(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    await log_in(client)
    assert (await client.post("/v1/chat/completions", json={}, headers=headers)).status_code == 401
    assert (await client.get("/debug/pool", headers=headers)).status_code == 401
    own = {"Origin": "http://test", "Sec-Fetch-Site": "same-origin"}
    assert (await client.get("/debug/pool", headers=own)).status_code == 503


@pytest.mark.parametrize("cookie", ["", "=", f"{COOKIE}=", f"{COOKIE}=x", "a;b;c", f'{COOKIE}="', "\xff=\xff"])
async def test_cookies_that_are_none(client: httpx.AsyncClient, cookie: str) -> None:
    headers = {b"Cookie": cookie.encode("latin-1")}
    assert (await client.get("/debug/pool", headers=headers)).status_code == 401


@pytest.mark.parametrize("other", ['a={"b": "c"}', "a b=c", "a", "ü=ä", "expires=x", 'a="b'])
async def test_cookies_of_others_on_this_host_do_no_harm(client: httpx.AsyncClient, other: str) -> None:
    """A browser sends along those of every port, whatever they look like."""
    await log_in(client)
    own = f"{COOKIE}={client.cookies[COOKIE]}"
    for cookie in (f"{other}; {own}", f"{own}; {other}"):
        headers = {b"Cookie": cookie.encode()}
        assert (await client.get("/dashboard", headers=headers)).status_code == 200


async def test_without_an_admin_key_it_says_how() -> None:
    for settings in ({}, {"api_keys": ("plain",)}):
        async with app_client(**settings) as client:
            answer = await client.get("/dashboard")
            assert answer.status_code == 403
            assert "--admin-key" in answer.text
            assert (await log_in(client, "")).status_code == 401
            assert (await client.get("/dashboard/main.js")).status_code in (401, 403)


async def test_parts_are_the_admins_and_are_not_sent_twice(client: httpx.AsyncClient) -> None:
    assert (await client.get("/dashboard/main.js")).status_code == 401
    await log_in(client)
    page = (await client.get("/dashboard")).text
    parts = set(re.findall(r'(?:src|href)="(/dashboard/[^"]+)"', page))
    assert "/dashboard/main.js" in parts
    for path in parts:
        answer = await client.get(path)
        assert answer.status_code == 200
        etag = answer.headers["etag"]
        assert (await client.get(path, headers={"If-None-Match": etag})).status_code == 304
    for name in ("index.html", "login.html", "uPlot.LICENSE", "..%2f..%2fengine.py", "nothing.js", "vendor"):
        assert (await client.get(f"/dashboard/{name}")).status_code == 404


async def test_nothing_foreign_runs_on_the_page(client: httpx.AsyncClient) -> None:
    await log_in(client)
    answer = await client.get("/dashboard")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self';" in policy
    assert "style-src 'self';" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    for name in ("index.html", "login.html", "no_key.html"):
        text = (DATA / name).read_text()
        assert not re.search(r"<script(?! src=)|<style| on\w+=| style=|https?:", text), name


async def test_a_form_that_is_too_large(client: httpx.AsyncClient) -> None:
    assert (await log_in(client, "x" * 10_000)).status_code == 413


async def test_over_tls_the_cookie_is_for_tls_alone(tmp_path: Path) -> None:
    async with app_client(admin_key="boss", ssl_certfile=tmp_path / "cert.pem") as client:
        assert "; Secure" in (await log_in(client)).headers["set-cookie"]


def test_sessions_end_and_are_bounded() -> None:
    now = 0.0
    sessions = Sessions(lambda: now)
    first = sessions.open()
    assert sessions.holds(first)
    assert not sessions.holds("")
    others = [sessions.open() for _ in range(MAX_SESSIONS)]
    assert not sessions.holds(first)
    assert all(map(sessions.holds, others))
    now += SESSION_SECONDS + 1
    assert not any(map(sessions.holds, others))


def test_the_chart_library_is_the_published_one(tmp_path: Path) -> None:
    """To take another version: docs/dashboard.md."""
    npm = debian_program("npm")
    done = subprocess.run([npm, "pack", "--json", UPLOT], cwd=tmp_path, capture_output=True, text=True, check=True)
    with tarfile.open(tmp_path / json.loads(done.stdout)[0]["filename"]) as package:
        for source, own in (
            ("package/dist/uPlot.iife.min.js", "uPlot.iife.min.js"),
            ("package/dist/uPlot.min.css", "uPlot.min.css"),
            ("package/LICENSE", "uPlot.LICENSE"),
        ):
            published = package.extractfile(source)
            assert published is not None
            content = (DATA / "vendor" / own).read_bytes()
            assert hashlib.sha256(published.read()).digest() == hashlib.sha256(content).digest()
    assert sum(file.stat().st_size for file in (DATA / "vendor").iterdir()) < 60_000
