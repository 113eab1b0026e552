"""B38 and B41 from outside: `octavo serve` on RAND, with streams beside that do not feel it."""

import concurrent.futures
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.cases.test_http_rand import FLAGS, quiet, wait_until
from tests.server.test_structured import BAD
from tests.support.fake_engine import MODEL
from tests.support.fake_server import ServerProcess, running_real_server

TEXTS = ["München", "東京", "😀", 'a"b', "tab\there", "back\\slash", ""]


@pytest.fixture(scope="module", params=["1", "2"], ids=["one step in flight", "two"])
def server(rand: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    with running_real_server(rand, *FLAGS, "--max-steps-in-flight", request.param) as running:
        yield running.wait_ready()


@pytest.fixture
def api(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(api: openai.OpenAI, seed: int = 1, **extra: Any) -> Any:
    params: dict[str, Any] = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 80, "temperature": 1.0, "seed": seed}
    params |= {key: extra.pop(key) for key in list(extra) if key in ("stream", "n", "max_tokens", "logprobs")}
    return api.completions.create(**params, extra_body=extra)


def test_b38_streams_beside_do_not_feel_what_is_refused(server: ServerProcess, api: openai.OpenAI) -> None:
    def stream(seed: int) -> tuple[str, float]:
        text, longest, last = "", 0.0, None
        for chunk in ask(api, seed, stream=True, max_tokens=150, ignore_eos=True):
            now = time.monotonic()
            longest = max(longest, now - (last or now))
            last = now
            text += chunk.choices[0].text
        return text, longest

    expected = [stream(seed)[0] for seed in (1, 2)]

    def refuse(fields: dict[str, Any]) -> int:
        with server.client() as client:
            body = {"prompt": "hi", "max_tokens": 4} | fields
            start = time.monotonic()
            status = client.post("/v1/completions", json=body).status_code
            assert time.monotonic() - start < 2.0
            assert client.get("/health").status_code == 200
            return status

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        streams = [threads.submit(stream, seed) for seed in (1, 2)]
        statuses = list(threads.map(refuse, [fields for _, fields in BAD]))
        results = [each.result() for each in streams]
    assert set(statuses) == {400}
    assert [text for text, _ in results] == expected
    assert max(longest for _, longest in results) < 1.0
    wait_until(lambda: quiet(server))


def test_b38_an_empty_regular_expression_gives_an_empty_text(api: openai.OpenAI) -> None:
    choice = ask(api, structured_outputs={"regex": ""}, min_tokens=5).choices[0]
    assert (choice.text, choice.finish_reason) == ("", "stop")


def test_b41_streamed_as_whole_and_each_value_exact(api: openai.OpenAI) -> None:
    seen = set()
    for seed in range(20):
        asked = {"json": {"enum": TEXTS}}
        whole = ask(api, seed, structured_outputs=asked).choices[0]
        chunks = list(ask(api, seed, structured_outputs=asked, stream=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == whole.text
        assert whole.finish_reason == "stop"
        seen.add(json.loads(whole.text))
    assert seen <= set(TEXTS)
    assert len(seen) > 2


def test_choices_are_each_of_the_form_and_differ(api: openai.OpenAI) -> None:
    answer = ask(api, structured_outputs={"regex": "[a-z]{12}"}, n=4, logprobs=2)
    texts = [choice.text for choice in answer.choices]
    assert all(len(text) == 12 and text.isalpha() and text.islower() for text in texts)
    assert len(set(texts)) == 4
    for choice in answer.choices:
        assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs)
        assert "".join(choice.logprobs.tokens) == choice.text


def test_many_at_once_of_many_kinds(server: ServerProcess) -> None:
    kinds: list[dict[str, Any]] = [
        {"structured_outputs": {"regex": "(ab){3,5}"}},
        {"guided_choice": ["yes", "no"]},
        {},
        {"response_format": {"type": "json_object"}, "max_tokens": 200},
    ]

    def post(number: int) -> tuple[int, dict[str, Any]]:
        with server.client() as client:
            client.timeout = httpx.Timeout(120.0)
            body = {"prompt": [number + 1, 5], "max_tokens": 40, "seed": number} | kinds[number % len(kinds)]
            return number, client.post("/v1/completions", json=body).json()["choices"][0]

    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        for number, choice in threads.map(post, range(40)):
            if choice["finish_reason"] == "length":
                continue
            if number % 4 == 0:
                assert choice["text"] in ("ab" * count for count in (3, 4, 5))
            elif number % 4 == 1:
                assert choice["text"] in ("yes", "no")
            elif number % 4 == 3:
                assert isinstance(json.loads(choice["text"]), dict)
    wait_until(lambda: quiet(server))


def test_a_client_that_leaves_while_its_grammar_is_compiled_leaves_nothing(server: ServerProcess) -> None:
    """Both the request and that nobody waits for it are there when the engine goes on."""
    schema = {"type": "object", "properties": {f"field {number}": {"type": "string"} for number in range(200)}}
    body = {"prompt": "hi", "guided_json": schema, "max_tokens": 1000}
    with server.engine_stopped(), server.client() as client:
        with pytest.raises(httpx.TimeoutException):
            client.post("/v1/completions", json=body, timeout=1.0)
        wait_until(lambda: server.num_open == 0)
    wait_until(lambda: quiet(server))
