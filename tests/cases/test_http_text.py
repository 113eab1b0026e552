"""B13, B20, B23, B25 from outside: `octavo serve` on models that type a script, through the real openai client."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest

from tests.cases.test_text import PIECES, TEXT, broken_pieces, chain, ending_model
from tests.support.fake_engine import MODEL
from tests.support.fake_server import running_real_server
from tests.support.models import edit_json, script_model

POOL = ("--num-blocks", "64", "--block-size", "4")
USER: Any = [{"role": "user", "content": "hello"}]


@contextmanager
def serving(folder: Path) -> Iterator[openai.OpenAI]:
    with running_real_server(folder, *POOL) as server:
        server.wait_ready()
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            yield client
        assert server.metric("vllm:num_requests_running") == 0  # QUIET
        assert server.metric("vllm:kv_cache_usage_perc") == 0


@pytest.fixture(scope="module")
def alphabet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    with serving(script_model(tmp_path_factory.mktemp("alphabet"), PIECES).path) as client:
        yield client


@pytest.fixture(scope="module")
def split_characters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    with serving(script_model(tmp_path_factory.mktemp("split"), chain(broken_pieces())).path) as client:
        yield client


@pytest.fixture(scope="module")
def ending(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """After x the best next token is S, an EOS that only generation_config.json lists, and x the second best."""
    script = ending_model(tmp_path_factory.mktemp("ending"))
    edit_json(script.path / "generation_config.json", {"eos_token_id": [script.eos_id, script.piece_ids[1]]})
    with serving(script.path) as client:
        yield client


def ask(client: openai.OpenAI, chat: bool, **fields: Any) -> Any:
    """One request to either route. The chat prompt ends with a control token, as it must not end with a piece of the
    script."""
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 60}
    if not chat:
        return client.completions.create(prompt="hello", **asked | fields)
    body: dict[str, Any] = {"add_generation_prompt": False, **fields.pop("extra_body", {})}
    return client.chat.completions.create(messages=USER, extra_body=body, **asked | fields)


def texts_of(answer: Any, chat: bool) -> list[str]:
    return [choice.message.content if chat else choice.text for choice in answer.choices]


def stream(client: openai.OpenAI, chat: bool, n: int = 1, **fields: Any) -> tuple[list[list[str]], list[list[str]]]:
    """The deltas' texts and the finish reasons of each choice."""
    texts: list[list[str]] = [[] for _ in range(n)]
    reasons: list[list[str]] = [[] for _ in range(n)]
    for chunk in ask(client, chat, n=n, stream=True, **fields):
        for choice in chunk.choices:
            assert not reasons[choice.index], "news of a choice that has ended"
            texts[choice.index].append((choice.delta.content or "") if chat else choice.text)
            if choice.finish_reason:
                reasons[choice.index].append(choice.finish_reason)
    return texts, reasons


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
@pytest.mark.parametrize("stop", ["beta gamma", ["beta gamma"]], ids=str)
def test_b20_stop_string(stop: Any, chat: bool, alphabet: openai.OpenAI) -> None:
    answer = ask(alphabet, chat, stop=stop, n=2)
    assert texts_of(answer, chat) == ["alpha ", "alpha "]
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "stop"]
    assert answer.usage.completion_tokens == 2 * 4  # D10
    texts, reasons = stream(alphabet, chat, n=2, stop=stop)
    assert ["".join(each) for each in texts] == ["alpha ", "alpha "]
    assert reasons == [["stop"], ["stop"]]
    included = ask(alphabet, chat, stop=stop, extra_body={"include_stop_str_in_output": True})
    assert texts_of(included, chat) == ["alpha beta gamma"]


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_b23_characters_of_several_tokens(chat: bool, split_characters: openai.OpenAI) -> None:
    logprobs = {"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2}
    answer = ask(split_characters, chat, n=2, **logprobs)
    assert texts_of(answer, chat) == [TEXT, TEXT]
    texts, _ = stream(split_characters, chat, n=2)
    for each in texts:
        assert "".join(each) == TEXT
        assert not any("\ufffd" in delta for delta in each)
        assert len([delta for delta in each if delta]) >= 4
    for choice in answer.choices:
        if chat:
            assert b"".join(bytes(entry.bytes) for entry in choice.logprobs.content).startswith(TEXT.encode())
        else:
            assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) > len(TEXT)


def test_b23_every_line_of_the_stream_is_utf8_and_json(split_characters: openai.OpenAI) -> None:
    """Read one byte at a time, two streams at once."""
    url = f"{split_characters.base_url}completions"
    fields = {"model": MODEL, "prompt": "hello", "max_tokens": 60, "stream": True}
    with (
        httpx.Client() as http,
        http.stream("POST", url, json=fields) as one,
        http.stream("POST", url, json=fields) as two,
    ):
        for response in (one, two):
            lines = b"".join(response.iter_bytes(1)).split(b"\n\n")
            assert lines[-2:] == [b"data: [DONE]", b""]
            parsed = [msgspec.json.decode(line.removeprefix(b"data: ")) for line in lines[:-2]]
            assert "".join(chunk["choices"][0]["text"] for chunk in parsed) == TEXT


def test_b25_min_tokens(ending: openai.OpenAI) -> None:
    def shape(**fields: Any) -> list[tuple[str, str]]:
        answer = ending.completions.create(
            model=MODEL, prompt="x", temperature=0, extra_body=fields.pop("body", {}), **({"max_tokens": 20} | fields)
        )
        assert answer.usage is not None
        return [(choice.text, choice.finish_reason) for choice in answer.choices]

    five = {"min_tokens": 5}
    assert shape(body=five, n=2) == [("xxxxx", "stop")] * 2
    assert shape(body=five, stop="xx") == [("xxxxx", "stop")]
    assert shape(body=five, logit_bias={str(ord("S")): 100}) == [("xxxxx", "stop")]
    assert shape(body=five, max_tokens=5) == [("xxxxx", "length")]
    assert shape() == shape(body={"min_tokens": 0}) == [("", "stop")]
    for wrong in ({"min_tokens": 6}, {"min_tokens": -1}):
        with pytest.raises(openai.BadRequestError) as error:
            shape(body=wrong, max_tokens=5)
        assert error.value.param == "min_tokens"
