"""Settings of the server that would quietly do something else than they say."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.core.errors import ConfigurationError
from octavo.server.settings import ServerSettings
from tests.support.fake_server import running_server


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host", ""),
        ("api_keys", ("",)),
        ("shutdown_timeout", -1.0),
        ("shutdown_timeout", float("nan")),
        ("allowed_origins", ("example.org",)),
        ("ssl_keyfile", Path("key.pem")),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError):
        ServerSettings("model", **{name: value})


def test_a_text_that_is_to_be_cut_has_a_limit_too(client: httpx.Client) -> None:
    """Tokenizing tens of megabytes to keep a few tokens would make everyone else wait."""
    body = {"prompt": "word " * 2**20, "truncate_prompt_tokens": 5, "max_tokens": 2}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    body["prompt"] = "word " * 2**14
    assert client.post("/v1/completions", json=body).json()["usage"]["prompt_tokens"] == 5


def test_the_pool_is_shown_before_the_first_request() -> None:
    with running_server() as fresh:
        assert fresh.wait_ready().metric("octavo:kv_blocks_total") > 0


def test_two_tenants_do_not_share_a_key() -> None:
    with pytest.raises(ConfigurationError, match="'a' and 'b' have the same key"):
        ServerSettings(served_model_name="m", tenant_keys=(("a", "k"), ("b", "k")))
    ServerSettings(served_model_name="m", tenant_keys=(("a", "k"), ("a", "l"), ("b", "m")))
