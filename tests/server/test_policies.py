"""Tenants over HTTP: who is told apart by which key or header, and what is shown of them."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from octavo.core.errors import ConfigurationError
from octavo.server.access.auth import Keyring, Role, Sender
from octavo.server.settings import ServerSettings
from tests.server.test_validation import check_error
from tests.support.fake_server import ServerProcess, running_real_server
from tests.support.models import rand_model

FLAGS = ("--num-blocks", "200", "--max-model-len", "400", "--max-num-seqs", "8", "--threads", "1")
TENANCY = ("--tenant-key", "search=key=1", "--tenant-key", "ads=key2", "--tenant-header", "X-Tenant-Id")


@pytest.fixture(scope="module")
def fair_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model: Path = rand_model(tmp_path_factory.mktemp("rand"))
    policy = ("--scheduling-policy", "fair", "--open-metrics")
    with running_real_server(model, *FLAGS, *TENANCY, *policy) as running:
        yield running.wait_ready()


def _complete(server: ServerProcess, key: str, **headers: str) -> httpx.Response:
    asked = {"prompt": [1, 2, 3], "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    with server.client(authorization=f"Bearer {key}", **headers) as client:
        return client.post("/v1/completions", json=asked)


def test_tokens_are_counted_by_the_name_of_the_key_or_by_the_header(fair_server: ServerProcess) -> None:
    for key, headers in (("key=1", {}), ("key2", {}), ("key2", {"x-tenant-id": "team/7"})):
        assert _complete(fair_server, key, **headers).status_code == 200
    for tenant in ("search", "ads", "team/7"):
        assert fair_server.metric("octavo:tenant_prompt_tokens_total", tenant=tenant) == 3
        assert fair_server.metric("octavo:tenant_generation_tokens_total", tenant=tenant) == 2
    with fair_server.client() as client:
        shown = client.get("/metrics").text + fair_server.log
    assert "key=1" not in shown
    assert "key2" not in shown


def test_a_tenants_key_is_needed_and_a_header_that_is_no_name_is_refused(fair_server: ServerProcess) -> None:
    check_error(_complete(fair_server, "key3"), 401)
    error = check_error(_complete(fair_server, "key2", **{"x-tenant-id": "a b"}))
    assert error["code"] == "invalid_tenant"


def test_a_header_that_names_two_tenants_is_refused(fair_server: ServerProcess) -> None:
    """A gateway adds its own behind the client's, or before it: nobody knows which one is to be believed."""
    headers = [("authorization", "Bearer key2"), ("x-tenant-id", "mine"), ("x-tenant-id", "yours")]
    with httpx.Client(base_url=fair_server.url, headers=headers) as client:
        error = check_error(client.post("/v1/completions", json={"prompt": [1], "max_tokens": 1}))
    assert (error["code"], error["message"]) == (
        "invalid_tenant",
        "The header that names the tenant comes more than once.",
    )


def test_the_tenant_of_each_key() -> None:
    settings = ServerSettings(
        "m", api_keys=("api",), admin_key="admin", pin_keys=("pin", "both"), tenant_keys=(("one", "1"), ("two", "both"))
    )
    keyring = Keyring(settings)
    found = {key: keyring.sender(b"Bearer " + key) for key in (b"api", b"admin", b"pin", b"1", b"both", b"none")}
    assert found == {
        b"api": Sender(Role.CLIENT, "default"),
        b"admin": Sender(Role.ADMIN, "default"),
        b"pin": Sender(Role.PINNER, "default"),
        b"1": Sender(Role.CLIENT, "one"),
        b"both": Sender(Role.PINNER, "two"),
        b"none": Sender(Role.NOBODY, "default"),
    }
    assert "both" not in repr(settings)


def test_with_tenants_keys_alone_a_key_is_needed() -> None:
    settings = ServerSettings("m", tenant_keys=(("one", "1"),))
    assert settings.listen_host == "0.0.0.0"
    assert Keyring(settings).sender(b"") == Sender(Role.NOBODY)


@pytest.mark.parametrize(
    "tenancy", [{"tenant_keys": (("", "k"),)}, {"tenant_keys": (("a", ""),)}, {"tenant_header": "a b"}]
)
def test_names_and_headers_that_are_none_are_refused(tenancy: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="tenant"):
        ServerSettings("m", **tenancy)  # type: ignore[arg-type]
