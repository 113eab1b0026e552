"""Keys and tenants of a file: several keys, limits of a tenant, reading it again, and no key in any log (D20)."""

import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from octavo.core.errors import ConfigurationError
from octavo.server.access.auth import Keyring, Role
from octavo.server.access.key_file import MAX_BYTES, read_key_file
from octavo.server.settings import ServerSettings
from tests.server.test_auth import app_client
from tests.server.test_validation import check_error
from tests.support.fake_server import ServerProcess, running_real_server, running_server
from tests.support.models import rand_model
from tests.support.waiting import wait_until

KEYS = f"""
plain: key-plain
hashed:
  keys: sha256:{hashlib.sha256(b"key-hashed").hexdigest()}
search:
  keys: [key-one, "key two"]
  may-pin: true
  requests-per-minute: 3
  tokens-per-minute: 20
  max-prompt-tokens: 12
  max-body-bytes: 500
number: 0123
"""


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    path.write_text(KEYS)
    return path


def test_whose_key_it_is(key_file: Path) -> None:
    settings = ServerSettings("m", api_key_file=key_file, api_keys=("a", "b"), admin_key="boss")
    assert settings.listen_host == "0.0.0.0"
    keyring = Keyring(settings)
    names = {b"a": "default", b"b": "default", b"key-plain": "plain", b"key-hashed": "hashed", b"0123": "number"}
    for key, name in names.items():
        sender = keyring.sender(b"Bearer " + key)
        assert (sender.role, sender.tenant) == (Role.CLIENT, name)
    one, two = keyring.sender(b"Bearer key-one"), keyring.sender(b"Bearer key two")
    assert (one.role, one.tenant) == (Role.PINNER, "search")
    assert one.allowance is two.allowance is not None
    for wrong in (b"", b"Bearer key", b"Bearer 123", b"Bearer 83", b"key-plain"):
        assert keyring.sender(wrong).role is Role.NOBODY


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "tenant: key"),
        ("- a", "tenant: key"),
        ("a: 'secret\nb: {", "see line"),
        ("a: secret\na: secret2", "see line 1"),
        ("a: secret\nb: secret", "'a' and 'b' have the same key"),
        (f"a: secret\nb: sha256:{hashlib.sha256(b'secret').hexdigest()}", "'a' and 'b' have the same key"),
        ("a:", "needs a key"),
        ("a: []", "needs a key"),
        ("a: [secret, '']", "needs a key"),
        ("a: [secret, {b: c}]", "needs a key"),
        ("a b: secret", "a tenant's name has"),
        ("a: {keys: secret, requests-per-hour: 5}", "no setting 'requests-per-hour'"),
        ("a: {keys: secret, requests-per-minute: 0}", "whole number above 0"),
        ("a: {keys: secret, tokens-per-minute: [5]}", "whole number above 0"),
        ("a: {keys: secret, may-pin: maybe}", "true or false"),
        ("a: sha256:secret", "has not 64 hexadecimal digits"),
        (f"a: [sha256:{'0' * 63}]", "has not 64 hexadecimal digits"),
    ],
)
def test_files_that_cannot_be_meant(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=reason) as caught:
        read_key_file(path)
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="No such file"):
        read_key_file(tmp_path / "none")


def test_files_that_are_too_deep_or_too_large(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("a: " + "[" * 100_000)
    with pytest.raises(ConfigurationError, match="not valid YAML"):
        read_key_file(path)
    path.write_text("#" * (MAX_BYTES + 1))
    with pytest.raises(ConfigurationError, match="larger than 16 MiB"):
        read_key_file(path)
    with pytest.raises(ConfigurationError, match="larger than 16 MiB"):
        read_key_file(Path("/dev/zero"))


def test_a_tenant_of_a_flag_and_one_of_the_file_have_not_the_same_key(key_file: Path) -> None:
    with pytest.raises(ConfigurationError, match="'x' and 'plain' have the same key"):
        Keyring(ServerSettings("m", api_key_file=key_file, tenant_keys=(("x", "key-plain"),)))


def test_rates_are_refilled_evenly(key_file: Path) -> None:
    now = 0.0
    keyring = Keyring(ServerSettings("m", api_key_file=key_file), lambda: now)
    allowance = keyring.sender(b"Bearer key-one").allowance
    assert allowance is not None
    for _ in range(3):
        allowance.take_request()
    for _ in range(2):  # what is refused takes nothing
        with pytest.raises(Exception, match="3 requests a minute") as caught:
            allowance.take_request()
        assert caught.value.retry_after == 20  # type: ignore[attr-defined]
    now = 20.0
    allowance.take_request()
    now = 10_000.0
    for _ in range(3):
        allowance.take_request()

    allowance.take_prompt(12, "prompt")
    allowance.take_generated(18)  # ten more than there were
    with pytest.raises(Exception, match="20 tokens a minute") as caught:
        allowance.take_prompt(5, "prompt")
    assert caught.value.retry_after == 45  # type: ignore[attr-defined]
    now += 45.0
    allowance.take_prompt(5, "prompt")
    for count in (13, 21):
        with pytest.raises(Exception, match=f"{count} prompt tokens"):
            allowance.take_prompt(count, "prompt")


def test_reading_again_keeps_what_was_used(key_file: Path) -> None:
    keyring = Keyring(ServerSettings("m", api_key_file=key_file))
    before = keyring.sender(b"Bearer key-one").allowance
    key_file.write_text(KEYS.replace("key-one", "key-new").replace("plain: key-plain\n", ""))
    assert keyring.reload() == 3
    assert keyring.sender(b"Bearer key-new").allowance is before
    assert keyring.sender(b"Bearer key-one").role is Role.NOBODY
    assert keyring.sender(b"Bearer key-plain").role is Role.NOBODY
    key_file.write_text("plain: {")
    with pytest.raises(ConfigurationError):
        keyring.reload()
    key_file.unlink()
    os.mkfifo(key_file)
    with pytest.raises(ConfigurationError, match="no plain file"):  # nobody writes, so reading it would never end
        keyring.reload()
    assert keyring.sender(b"Bearer key-new").allowance is before


@pytest.fixture
def served(key_file: Path) -> Iterator[ServerProcess]:
    settings = {"api_key_file": str(key_file), "host": "127.0.0.1", "log_requests": True, "admin_key": "boss"}
    with running_server(**settings) as server:
        server.wait_ready()
        yield server


def test_limits_of_a_tenant_over_http(served: ServerProcess) -> None:
    one = {"Authorization": "Bearer key-one"}
    with served.client(**one) as client:
        error = check_error(client.post("/v1/completions", json={"prompt": "x" * 12, "max_tokens": 1}))
        assert (error["param"], error["message"]) == (
            "prompt",
            "The request has 13 prompt tokens; this key may send 12 in one.",
        )
        check_error(client.post("/v1/completions", json={"prompt": "x", "user": "x" * 500}), 413)
        answer = client.post("/v1/completions", json={"prompt": "x" * 8, "max_tokens": 16})
        assert answer.status_code == 200
        assert client.get("/v1/models").status_code == 200  # not counted
        refused = client.post("/v1/completions", json={"prompt": "x"}, headers={"X-Request-Id": "fourth"})
        assert check_error(refused, 429)["code"] == "rate_limit_exceeded"
        assert 1 <= int(refused.headers["Retry-After"]) <= 20
    with served.client(Authorization="Bearer boss") as admin:
        refusals = admin.get("/debug/requests/fourth").json()["refused"]
        assert refusals[0]["code"] == "rate_limit_exceeded"
        assert 'reason="rate_limit"} 1.0' in admin.get("/metrics").text
    with served.client(Authorization="Bearer key-plain") as client:
        assert client.post("/v1/completions", json={"prompt": "x" * 100, "max_tokens": 50}).status_code == 200


def test_tokens_a_minute_over_http(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("a: {keys: k, tokens-per-minute: 30}")
    with (
        running_server(api_key_file=str(keys), host="127.0.0.1") as server,
        server.wait_ready().client(Authorization="Bearer k") as client,
    ):
        chat = {"messages": [{"role": "user", "content": "x" * 40}], "max_tokens": 1}
        assert check_error(client.post("/v1/chat/completions", json=chat))["param"] == "messages"
        assert client.post("/v1/completions", json={"prompt": "x", "max_tokens": 60}).status_code == 200
        for stream in (False, True):
            fields = {"prompt": "x", "max_tokens": 1, "stream": stream}
            refused = client.post("/v1/completions", json=fields)
            assert check_error(refused, 429)["code"] == "rate_limit_exceeded"
            assert int(refused.headers["Retry-After"]) > 30


def test_sighup_reads_the_keys_again(served: ServerProcess, key_file: Path) -> None:
    key_file.write_text("other: key-other\n")
    os.kill(served.process.pid, signal.SIGHUP)
    wait_until(lambda: "read again" in served.log)
    with served.client() as client:
        for key, status in (("key-other", 200), ("key-plain", 401)):
            assert client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == status
        key_file.write_text("other: {keys: key-secret, no: 1}")
        os.kill(served.process.pid, signal.SIGHUP)
        wait_until(lambda: "stay as they were" in served.log)
        assert client.get("/v1/models", headers={"Authorization": "Bearer key-other"}).status_code == 200
    assert "key-" not in served.log


def test_signals_while_a_long_file_is_read_end_with_the_last_file(served: ServerProcess, key_file: Path) -> None:
    key_file.write_text("\n".join(f"tenant-{number}: key-{number}" for number in range(20000)))
    os.kill(served.process.pid, signal.SIGHUP)
    key_file.write_text("last: key-last")
    for _ in range(20):
        os.kill(served.process.pid, signal.SIGHUP)
    with served.client(Authorization="Bearer key-last") as client:
        wait_until(lambda: client.get("/v1/models").status_code == 200)
        assert client.get("/health").status_code == 200


def test_the_admin_key_is_no_tenants(key_file: Path) -> None:
    for settings in (
        ServerSettings("m", api_key_file=key_file, admin_key="key-one"),
        ServerSettings("m", api_key_file=key_file, admin_key="key-hashed"),
        ServerSettings("m", tenant_keys=(("a", "boss"),), admin_key="boss"),
    ):
        with pytest.raises(ConfigurationError, match="has the admin key"):
            Keyring(settings)


def test_no_key_is_in_the_log(served: ServerProcess) -> None:
    with served.client(Authorization="Bearer key-plain") as client:
        client.post("/v1/completions?api_key=key-plain", json={"prompt": "text-of-the-prompt", "max_tokens": 2})
        client.post("/v1/completions", json={"prompt": 5}, headers={"X-Request-Id": "named"})
        client.get("/no%0Asuch%20place")
        client.get("/v1/models", headers={"Authorization": "Bearer key-wrong"})
    os.kill(served.process.pid, signal.SIGTERM)
    served.wait_exit()
    assert '"POST /v1/completions" 200' in served.log
    assert '"POST /v1/completions" 400 named' in served.log
    assert '"GET /no%0Asuch%20place" 404' in served.log
    assert '"GET /v1/models" 401' in served.log
    assert "key-" not in served.log
    assert "text-of-the-prompt" not in served.log


def test_keys_are_not_in_the_list_of_processes(tmp_path: Path) -> None:
    flags = ("--api-key", "hidden-1", "--api-key=hidden-2", "--tenant-key", "name=hidden-3", "--admin-key", "hidden-4")
    flags += ("--threads", "1", "--num-blocks", "8", "--max-model-len", "64", "--host", "127.0.0.1")
    with running_real_server(rand_model(tmp_path), *flags) as server:
        assert server.port
        processes = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
        shown = [" ".join(process.cmdline()) for process in processes]
        assert "--api-key ******** --api-key=******** --tenant-key name=******** --admin-key ********" in shown[0]
        assert "hidden" not in "".join(shown)
        server.wait_ready()
        with httpx.Client(base_url=server.url) as client:
            for key, status in (("hidden-1", 200), ("hidden-2", 200), ("hidden-3", 200), ("********", 401)):
                headers = {"Authorization": f"Bearer {key}"}
                assert client.get("/v1/models", headers=headers).status_code == status


async def test_browsers_may_ask_only_where_it_is_allowed() -> None:
    asks = {"Origin": "https://chat.example", "Access-Control-Request-Method": "POST"}
    asks["Access-Control-Request-Headers"] = "authorization,content-type"
    async with app_client(api_keys=("k",)) as client:
        answer = await client.options("/v1/chat/completions", headers=asks)
        assert answer.status_code == 401
        assert "access-control-allow-origin" not in answer.headers
    async with app_client(api_keys=("k",), allowed_origins=("https://chat.example",)) as client:
        answer = await client.options("/v1/chat/completions", headers=asks)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://chat.example"
        assert "authorization" in answer.headers["access-control-allow-headers"].lower()
        assert (await client.options("/v1/models", headers=asks | {"Origin": "https://other"})).status_code == 400
        for headers, status in (({}, 401), ({"Authorization": "Bearer k"}, 503)):
            answer = await client.get("/v1/models", headers=headers | {"Origin": "https://chat.example"})
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == "https://chat.example"
            assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
        answer = await client.get("/v1/models", headers={"Origin": "https://other"})
        assert "access-control-allow-origin" not in answer.headers
