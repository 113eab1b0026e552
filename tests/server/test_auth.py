"""D20: with a key, /health alone is open; without one, only this machine can connect."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from octavo.core.errors import ConfigurationError
from octavo.engine.client import AsyncEngineClient
from octavo.metrics.prometheus import EngineMetrics
from octavo.server.access.auth import Keyring, Role
from octavo.server.app import create_app
from octavo.server.settings import ServerSettings
from octavo.server.state import ServerState


@asynccontextmanager
async def app_client(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """The application while it is loading: what passes the key is answered 503 by most endpoints."""
    metrics = EngineMetrics("fake")
    engine = AsyncEngineClient(metrics.observe)
    app = create_app(ServerState(ServerSettings("fake", **settings), engine, metrics, started_at=0))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        yield client
    engine.child.shutdown()


async def test_without_the_key() -> None:
    async with app_client(api_keys=("sesame",)) as client:
        assert (await client.get("/health")).status_code == 503
        for path in ("/v1/models", "/metrics", "/load", "/version", "/ping", "/nope", "/health/"):
            answer = await client.get(path)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert "sesame" not in answer.text


@pytest.mark.parametrize(
    "wrong", ["", "Bearer", "Bearer sesam", "Bearer sesamee", "sesame", "Basic sesame", "Bearer é"]
)
async def test_with_a_wrong_key(wrong: str) -> None:
    async with app_client(api_keys=("sesame",)) as client:
        assert (await client.get("/version", headers={b"Authorization": wrong.encode()})).status_code == 401


async def test_with_the_key() -> None:
    async with app_client(api_keys=("sésame",)) as client:
        answer = await client.get("/version", headers={b"Authorization": "Bearer sésame".encode()})
        assert answer.status_code == 200
        answer = await client.post("/v1/completions", headers={b"Authorization": "bearer sésame".encode()})
        assert answer.status_code == 503


async def test_metrics_may_be_open() -> None:
    async with app_client(api_keys=("sesame",), open_metrics=True) as client:
        assert (await client.get("/metrics")).status_code == 200
        assert (await client.get("/version")).status_code == 401


@pytest.mark.parametrize(("settings", "host"), [({}, "127.0.0.1"), ({"api_keys": ("k",)}, "0.0.0.0")])
def test_where_it_listens(settings: dict[str, Any], host: str) -> None:
    assert ServerSettings("m", **settings).listen_host == host
    assert ServerSettings("m", host="::1", **settings).listen_host == "::1"
    assert "api_keys" not in repr(ServerSettings("m", **settings))


async def test_admin_routes_are_off_without_an_admin_key() -> None:
    for settings in ({}, {"api_keys": ("sesame",)}, {"allow_pins": True}):
        async with app_client(**settings) as client:
            answer = await client.get("/admin/pins", headers={"Authorization": "Bearer sesame"})
            assert answer.status_code == 403
            assert "no admin key is set" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("settings", "key", "role"),
    [
        ({}, None, Role.CLIENT),
        ({}, "anything", Role.CLIENT),
        ({"allow_pins": True}, None, Role.PINNER),
        ({"admin_key": "boss"}, None, Role.CLIENT),
        ({"admin_key": "boss"}, "boss", Role.ADMIN),
        ({"api_keys": ("k",)}, None, Role.NOBODY),
        ({"api_keys": ("k",)}, "boss", Role.NOBODY),
        ({"api_keys": ("k",)}, "k", Role.CLIENT),
        ({"api_keys": ("k",), "allow_pins": True}, "k", Role.PINNER),
        ({"api_keys": ("k",), "pin_keys": ("p", "q")}, "k", Role.CLIENT),
        ({"api_keys": ("k",), "pin_keys": ("p", "q")}, "q", Role.PINNER),
        ({"api_keys": ("k",), "pin_keys": ("p",), "admin_key": "k"}, "k", Role.ADMIN),
    ],
)
def test_what_a_key_allows(settings: dict[str, Any], key: str | None, role: Role) -> None:
    header = b"" if key is None else f"Bearer {key}".encode()
    assert Keyring(ServerSettings("m", **settings)).sender(header).role is role


@pytest.mark.parametrize("settings", [{"admin_key": ""}, {"pin_keys": ("p", "")}])
def test_an_empty_key_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="is empty"):
        ServerSettings("m", **settings)
    assert "boss" not in repr(ServerSettings("m", admin_key="boss", pin_keys=("boss",)))
