"""Pins and retention priorities over HTTP, with a real engine: request fields, marks, the admin's routes, metrics."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.server.test_validation import check_error
from tests.support.fake_server import ServerProcess, running_real_server
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.parity import random_ids
from tests.support.waiting import wait_until

PLAIN, PINNER, ADMIN = "plain-key", "pinner-key", "admin-key"
DOCUMENT = "This is a document of some length, and it is the same in all of the questions that are asked about it. "


@pytest.fixture(scope="module")
def pin_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model: Path = rand_model(tmp_path_factory.mktemp("rand"))
    flags = ("--num-blocks", "80", "--max-model-len", "512", "--max-num-seqs", "4", "--threads", "1")
    keys = ("--api-key", PLAIN, "--pin-key", PINNER, "--admin-key", ADMIN, "--host", "127.0.0.1", "--open-metrics")
    with running_real_server(model, *flags, *keys) as running:
        yield running.wait_ready()


@pytest.fixture
def clients(pin_server: ServerProcess) -> Iterator[dict[str, httpx.Client]]:
    """One a key; no pin is left behind."""
    opened = {key: pin_server.client(Authorization=f"Bearer {key}") for key in (PLAIN, PINNER, ADMIN)}
    yield opened
    for pin in pins(opened):
        opened[ADMIN].delete(f"/admin/pins/{pin['id']}").raise_for_status()
    for client in opened.values():
        client.close()


def pins(clients: dict[str, httpx.Client]) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = clients[ADMIN].get("/admin/pins").raise_for_status().json()["data"]
    return listed


def complete(client: httpx.Client, prompt: Any, **fields: Any) -> dict[str, int]:
    """The details of the prompt's tokens."""
    asked = {"prompt": prompt, "max_tokens": 2, "temperature": 0} | fields
    body = client.post("/v1/completions", json=asked).raise_for_status().json()
    details: dict[str, int] = body["usage"]["prompt_tokens_details"]
    return details


def crowd(client: httpx.Client) -> None:
    for seed in range(100, 104):
        complete(client, random_ids(400, RAND_VOCAB, seed=seed))


def test_the_admin_pins_a_prompt(clients: dict[str, httpx.Client], pin_server: ServerProcess) -> None:
    head = random_ids(70, RAND_VOCAB, seed=1)
    answer = clients[ADMIN].post("/admin/pins", json={"prompt": head, "ttl": 600, "priority": 10})
    pin = answer.raise_for_status().json()
    assert (pin["tokens"], pin["blocks"], pin["priority"], pin["cache_salt"]) == (64, 4, 10, None)
    assert 590 < pin["expires_in"] <= 600
    assert abs(pin["expires_at"] - time.time() - 600) < 10
    assert [each["id"] for each in pins(clients)] == [pin["id"]]
    crowd(clients[PLAIN])
    assert complete(clients[PLAIN], [*head[:65], 7, 8])["cached_tokens"] >= 64
    assert pin_server.metric("octavo:kv_blocks", state="pinned") == 4
    assert pin_server.metric("octavo:pins") == 1
    assert pin_server.metric("octavo:pin_quota_blocks") == 20
    deleted = clients[ADMIN].delete(f"/admin/pins/{pin['id']}").raise_for_status().json()
    assert deleted == {"id": pin["id"], "object": "pin", "deleted": True}
    assert clients[ADMIN].delete(f"/admin/pins/{pin['id']}").status_code == 404
    assert pin_server.metric("octavo:kv_blocks", state="pinned") == 0
    crowd(clients[PLAIN])
    assert complete(clients[PLAIN], [*head[:65], 7, 8])["cached_tokens"] < 64


def test_the_admin_pins_a_conversation_of_a_tenant(clients: dict[str, httpx.Client]) -> None:
    system = {"role": "system", "content": DOCUMENT}
    pin = clients[ADMIN].post("/admin/pins", json={"messages": [system], "cache_salt": "a"}).raise_for_status().json()
    assert (pin["expires_at"], pin["expires_in"], pin["cache_salt"]) == (None, None, "a")
    crowd(clients[PLAIN])
    asked = {"messages": [system, {"role": "user", "content": "So?"}], "max_tokens": 1}
    found = [
        clients[PLAIN].post("/v1/chat/completions", json=asked | {"cache_salt": salt}).raise_for_status().json()
        for salt in ("a", "b")
    ]
    cached = [body["usage"]["prompt_tokens_details"]["cached_tokens"] for body in found]
    assert cached[0] >= pin["tokens"] > 16
    assert cached[1] == 0


def test_a_pin_ends_though_nothing_runs(clients: dict[str, httpx.Client], pin_server: ServerProcess) -> None:
    clients[ADMIN].post("/admin/pins", json={"prompt": random_ids(40, RAND_VOCAB, seed=2), "ttl": 0.5})
    wait_until(lambda: pin_server.metric("octavo:pins") == 0)
    assert pin_server.metric("octavo:kv_blocks", state="pinned") == 0


def test_only_the_admin_key_opens_admin_routes(clients: dict[str, httpx.Client], pin_server: ServerProcess) -> None:
    for key in (PLAIN, PINNER):
        for answer in (
            clients[key].get("/admin/pins"),
            clients[key].post("/admin/pins", json={"prompt": "x"}),
            clients[key].delete("/admin/pins/pin-0"),
        ):
            assert answer.status_code == 403
            assert answer.json()["error"]["type"] == "permission_error"
            assert "needs the admin key" in answer.json()["error"]["message"]
    with pin_server.client() as stranger:
        assert stranger.get("/admin/pins").status_code == 401


def test_a_request_pins_its_prompt(clients: dict[str, httpx.Client], pin_server: ServerProcess) -> None:
    with openai.OpenAI(base_url=f"{pin_server.url}/v1", api_key=PINNER) as client:
        answer = client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": DOCUMENT}],
            max_tokens=2,
            extra_body={"pin_prefix": {"ttl": 60}},
        )
    (pin,) = pins(clients)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.model_extra == {"pinned_tokens": pin["tokens"]}
    assert 50 < pin["expires_in"] <= 60


def test_a_pin_of_a_part_and_of_several_prompts(clients: dict[str, httpx.Client]) -> None:
    prompts = [random_ids(50, RAND_VOCAB, seed=seed) for seed in (3, 4)]
    details = complete(clients[PINNER], prompts, pin_prefix={"tokens": 40})
    assert details["pinned_tokens"] == 64
    assert [pin["tokens"] for pin in pins(clients)] == [32, 32]


def test_who_may_not_pin(clients: dict[str, httpx.Client]) -> None:
    asked = {"prompt": DOCUMENT, "max_tokens": 1}
    for fields, param in (({"pin_prefix": {}}, "pin_prefix"), ({"retention_priority": 36}, "retention_priority")):
        answer = clients[PLAIN].post("/v1/completions", json=asked | fields)
        assert answer.status_code == 403
        assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == (param, "pins_not_allowed")
    for fields in ({"retention_priority": 35}, {"retention_priority": 0}, {"pin_prefix": None}):
        clients[PLAIN].post("/v1/completions", json=asked | fields).raise_for_status()


def marked(ttl: str | None = None) -> dict[str, Any]:
    mark = {"type": "ephemeral"} | ({} if ttl is None else {"ttl": ttl})
    return {"type": "text", "text": DOCUMENT, "cache_control": mark}


def chat(client: httpx.Client, question: str, ttl: str | None = None, **fields: Any) -> dict[str, int]:
    messages = [{"role": "user", "content": [marked(ttl), {"type": "text", "text": question}]}]
    body = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1} | fields)
    details: dict[str, int] = body.raise_for_status().json()["usage"]["prompt_tokens_details"]
    return details


def test_marks_pin_what_is_before_them(clients: dict[str, httpx.Client]) -> None:
    first = chat(clients[PINNER], "What is it?", "1h")
    (pin,) = pins(clients)
    assert first["pinned_tokens"] == pin["tokens"]
    assert 3590 < pin["expires_in"] <= 3600
    crowd(clients[PLAIN])
    second = chat(clients[PINNER], "Why?")
    assert second["cached_tokens"] >= pin["tokens"] == second["pinned_tokens"]
    (again,) = pins(clients)
    assert again["expires_at"] == pin["expires_at"], "the later end counts"


def test_marks_of_others_are_plain_caching(clients: dict[str, httpx.Client]) -> None:
    assert "pinned_tokens" not in chat(clients[PLAIN], "What is it?")
    assert pins(clients) == []
    assert chat(clients[PLAIN], "What was it?")["cached_tokens"] > 16


def test_a_mark_that_finds_no_room_is_left_out(clients: dict[str, httpx.Client], pin_server: ServerProcess) -> None:
    before = pin_server.metric("octavo:pins_refused_total", reason="quota")
    clients[ADMIN].post("/admin/pins", json={"prompt": random_ids(310, RAND_VOCAB, seed=5)}).raise_for_status()
    assert chat(clients[PINNER], "What is it?")["pinned_tokens"] == 0
    answer = clients[PINNER].post("/v1/completions", json={"prompt": DOCUMENT, "pin_prefix": {}})
    error = check_error(answer)
    assert error["param"] == "pin_prefix"
    assert "pins may hold 20 (pin_quota) and hold 19" in error["message"]
    assert pin_server.metric("octavo:pins_refused_total", reason="quota") == before + 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"pin_prefix": {"ttl": 0}}, "pin_prefix"),
        ({"pin_prefix": {"ttl": 90000}}, "pin_prefix"),
        ({"pin_prefix": {"ttl": "5m"}}, "pin_prefix"),
        ({"pin_prefix": {"priority": 101}}, "priority"),
        ({"pin_prefix": {"tokens": 10000}}, "pin_prefix"),
        ({"pin_prefix": {"tokens": -1}}, "pin_prefix"),
        ({"pin_prefix": {"tokens": 3}}, "pin_prefix"),
        ({"pin_prefix": True}, "pin_prefix"),
        ({"retention_priority": 101}, "retention_priority"),
        ({"retention_priority": "high"}, "retention_priority"),
        ({"retention_duration": 5}, "retention_duration"),
        ({"retention_priority": 80, "retention_duration": 0}, "retention_duration"),
        ({"cache_control": "ephemeral"}, "cache_control"),
        ({"cache_control": {"type": "persistent"}}, "cache_control"),
        ({"cache_control": {"type": "ephemeral", "ttl": "1d"}}, "cache_control"),
        ({"cache_control": {"type": "ephemeral", "ttl": 300}}, "cache_control"),
    ],
)
def test_bad_values(clients: dict[str, httpx.Client], fields: dict[str, Any], param: str) -> None:
    asked = {"messages": [{"role": "user", "content": DOCUMENT}], "max_tokens": 1} | fields
    assert check_error(clients[PINNER].post("/v1/chat/completions", json=asked))["param"] == param


def test_at_most_four_marks(clients: dict[str, httpx.Client]) -> None:
    parts = [marked() for _ in range(5)]
    for count, status in ((4, 200), (5, 400)):
        asked = {"messages": [{"role": "user", "content": parts[:count]}], "max_tokens": 1}
        for key in (PLAIN, PINNER):
            assert clients[key].post("/v1/chat/completions", json=asked).status_code == status


def test_bad_admin_requests(clients: dict[str, httpx.Client]) -> None:
    for asked in ({}, {"prompt": "x", "messages": []}, {"prompt": ["a", "b"]}, {"prompt": DOCUMENT, "ttl": -1}):
        check_error(clients[ADMIN].post("/admin/pins", json=asked))
    assert pins(clients) == []
