"""``cache_salt`` and ``cache_open_tokens`` over HTTP, with a real engine (B11)."""

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.test_validation import case_id, check_error
from tests.support.fake_server import ServerProcess, running_real_server
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.parity import random_ids

SYSTEM = {"role": "system", "content": "Answer in as few words as you can, and say nothing that you do not know."}


@pytest.fixture(scope="module")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model: Path = rand_model(tmp_path_factory.mktemp("rand"))
    flags = ("--num-blocks", "200", "--max-model-len", "400", "--max-num-seqs", "8", "--threads", "1")
    with running_real_server(model, *flags) as running:
        yield running.wait_ready()


@pytest.fixture
def real(real_server: ServerProcess) -> Iterator[httpx.Client]:
    with real_server.client() as opened:
        yield opened


def complete(client: httpx.Client, prompt: Any, **fields: Any) -> tuple[int, str]:
    """Cached tokens and the text."""
    asked = {"prompt": prompt, "max_tokens": 4, "temperature": 0} | fields
    body = client.post("/v1/completions", json=asked).raise_for_status().json()
    return body["usage"]["prompt_tokens_details"]["cached_tokens"], body["choices"][0]["text"]


def chat(client: httpx.Client, messages: list[dict[str, str]], **fields: Any) -> int:
    """Cached tokens."""
    asked = {"messages": messages, "max_tokens": 4, "temperature": 0} | fields
    body = client.post("/v1/chat/completions", json=asked).raise_for_status().json()
    cached: int = body["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def test_b11_salts_over_http(real: httpx.Client) -> None:
    prompt = random_ids(64, RAND_VOCAB, seed=1)
    answers = [complete(real, prompt, cache_salt=salt) for salt in ("a", "a", "b", None, None, "a")]
    assert [num_cached for num_cached, _ in answers] == [0, 63, 0, 0, 63, 63]
    assert len({text for _, text in answers}) == 1


def test_open_tokens_of_a_completion(real: httpx.Client) -> None:
    prompt = random_ids(64, RAND_VOCAB, seed=2)
    answers = [complete(real, prompt, cache_salt=salt, cache_open_tokens=21) for salt in ("a", "b", "a")]
    answers += [complete(real, prompt, cache_salt="c", cache_open_tokens=count) for count in (0, None)]
    assert [num_cached for num_cached, _ in answers] == [0, 21, 63, 0, 63]
    assert len({text for _, text in answers}) == 1


def test_open_tokens_count_in_each_prompt(real: httpx.Client) -> None:
    head, tails = random_ids(20, RAND_VOCAB, seed=3), [random_ids(30, RAND_VOCAB, seed=seed) for seed in (4, 5)]
    complete(real, head + random_ids(9, RAND_VOCAB, seed=6), cache_salt="a", cache_open_tokens=20)
    assert complete(real, [head + tail for tail in tails], cache_salt="b", cache_open_tokens=20)[0] == 40


def test_an_open_system_message(real: httpx.Client) -> None:
    """It is computed once for all tenants; what they ask stays theirs, also where they ask the same."""
    talks = [[SYSTEM, user(words)] for words in ("where is it?", "perhaps it is here?")]
    tokens = [real.post("/tokenize", json={"messages": talk}).json()["tokens"] for talk in talks]
    num_system = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*tokens, strict=False)))
    assert 30 < num_system < min(map(len, tokens))
    shares = {"cache_open_tokens": "system"}
    assert chat(real, talks[0], cache_salt="a", **shares) == 0
    assert chat(real, talks[1], cache_salt="b", **shares) == num_system
    assert chat(real, talks[0], cache_salt="b", **shares) == num_system
    assert chat(real, talks[0], cache_salt="a", **shares) == len(tokens[0]) - 1
    assert chat(real, talks[0], cache_salt="c", cache_open_tokens=num_system) == num_system
    assert chat(real, talks[0], cache_salt="d") == 0
    assert chat(real, talks[0]) == num_system


def test_no_system_message_opens_nothing(real: httpx.Client) -> None:
    talk = [user("Is anybody there, and if so, who is it?")]
    shares = {"cache_open_tokens": "system"}
    assert [chat(real, talk, cache_salt=salt, **shares) for salt in ("a", "b")] == [0, 0]


def test_a_search_keeps_its_salt(real: httpx.Client) -> None:
    prompt = random_ids(64, RAND_VOCAB, seed=7)
    search = {"use_beam_search": True, "n": 2, "cache_open_tokens": 40}
    found = [complete(real, prompt, cache_salt=salt, **search)[0] for salt in ("a", "b", "a")]
    assert found == [0, 40, 63]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"cache_open_tokens": -1}, "got -1"),
    ({"cache_open_tokens": 300}, "got 300"),
    ({"cache_open_tokens": 2**62}, f"got {2**62}"),
    ({"cache_open_tokens": 2**70}, "cache_open_tokens"),
    ({"cache_open_tokens": 1.5}, "cache_open_tokens"),
    ({"cache_open_tokens": True}, "cache_open_tokens"),
    ({"cache_open_tokens": "all"}, "cache_open_tokens"),
    ({"cache_open_tokens": [3]}, "cache_open_tokens"),
    ({"cache_open_tokens": 3, "cache_salt": None}, "needs a cache_salt"),
    ({"cache_open_tokens": 3, "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "message"), [*BAD, ({"cache_open_tokens": "system"}, "cache_open_tokens")], ids=case_id
)
def test_completions_refuse(real: httpx.Client, fields: dict[str, Any], message: str, stream: bool) -> None:
    asked = {"prompt": "hello", "max_tokens": 2, "cache_salt": "a", "stream": stream} | fields
    error = check_error(real.post("/v1/completions", json=asked))
    assert error["param"] == "cache_open_tokens"
    assert message in error["message"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [*BAD, ({"cache_open_tokens": "system", "cache_salt": None}, "needs a cache_salt")],
    ids=case_id,
)
def test_chat_refuses(real: httpx.Client, fields: dict[str, Any], message: str) -> None:
    asked = {"messages": [SYSTEM, user("hello")], "max_tokens": 2, "cache_salt": "a"} | fields
    error = check_error(real.post("/v1/chat/completions", json=asked))
    assert error["param"] == "cache_open_tokens"
    assert message in error["message"]


def test_a_priority_needs_its_policy(real: httpx.Client) -> None:
    """The words are vLLM's: gateways look for them."""
    for url, fields in (
        ("/v1/completions", {"prompt": [1, 2], "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": [user("a")], "max_tokens": 1}),
    ):
        error = check_error(real.post(url, json=fields | {"priority": 5}))
        assert error["param"] == "priority"
        assert "Got priority 5 but Priority scheduling is not enabled" in error["message"]
