"""B29, B23: the shapes of logprobs, over HTTP and by hand."""

import math
from typing import Any

import httpx
import msgspec
import pytest

from octavo.core.step import TokenLogprobs
from octavo.server.logprobs import CompletionLogprobs, TokenWriter, chat_logprobs
from tests.support.byte_tokenizer import EOS, ByteTokenizer

TEXT = "alpha beta gamma délta 漢"
COUNT = len(TEXT.encode())


def complete(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = client.post("/v1/completions", json={"prompt": "hi", "max_tokens": COUNT, **fields})
    assert response.status_code == 200, response.text
    return msgspec.json.decode(response.content)["choices"][0]  # strict: no NaN, no Infinity


def chat(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hi"}]
    response = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": COUNT, **fields})
    assert response.status_code == 200, response.text
    return msgspec.json.decode(response.content)["choices"][0]


def streamed(client: httpx.Client, path: str, fields: dict[str, Any]) -> list[dict[str, Any]]:
    response = client.post(path, json=fields | {"stream": True})
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [msgspec.json.decode(line)["choices"][0] for line in lines]


@pytest.mark.parametrize("k", [0, 1, 5])
def test_completions(client: httpx.Client, k: int) -> None:
    choice = complete(client, logprobs=k)
    shown = choice["logprobs"]
    assert {len(each) for each in shown.values()} == {COUNT}
    for token, logprob, top in zip(shown["tokens"], shown["token_logprobs"], shown["top_logprobs"], strict=True):
        assert top[token] == logprob
        assert k <= len(top) <= k + 1 or k == 0
        assert list(top.values()) == sorted(top.values(), reverse=True)
        assert min(top.values()) >= -9999.0
    if k == 5:
        assert any(-9999.0 in top.values() for top in shown["top_logprobs"])
    assert bytes(sum(shown["bytes"], [])).decode() == choice["text"] == TEXT
    assert shown["tokens"][-3:] == ["bytes:\\xe6", "bytes:\\xbc", "bytes:\\xa2"]
    for offset, token in zip(shown["text_offset"], shown["tokens"], strict=True):
        if not token.startswith("bytes:"):
            assert TEXT[offset] == token


def test_none_asked_for(client: httpx.Client) -> None:
    assert complete(client)["logprobs"] is None
    assert complete(client, logprobs=None)["logprobs"] is None
    assert chat(client)["logprobs"] is None


def test_echo_holds_the_prompt(client: httpx.Client) -> None:
    choice = complete(client, logprobs=2, echo=True, prompt="hi", max_tokens=3)
    shown = choice["logprobs"]
    assert choice["text"] == "hialp"
    assert shown["tokens"] == ["<s>", "h", "i", "a", "l", "p"]
    assert shown["token_logprobs"][0] is None
    assert shown["top_logprobs"][0] is None
    assert shown["text_offset"] == [0, 0, 1, 2, 3, 4]
    chunks = streamed(client, "/v1/completions", {"prompt": "hi", "logprobs": 2, "echo": True, "max_tokens": 3})
    assert sum((chunk["logprobs"]["text_offset"] for chunk in chunks), []) == shown["text_offset"]


@pytest.mark.parametrize("k", [None, 0, 3])
def test_chat(client: httpx.Client, k: int | None) -> None:
    choice = chat(client, logprobs=True, top_logprobs=k)
    entries = choice["logprobs"]["content"]
    assert len(entries) == COUNT
    assert all(len(entry["top_logprobs"]) == (k or 0) for entry in entries)
    assert bytes(sum((entry["bytes"] for entry in entries), [])).decode() == choice["message"]["content"] == TEXT


def test_streamed_entries_are_the_whole_ones(client: httpx.Client) -> None:
    fields = {"prompt": "hi", "max_tokens": COUNT, "logprobs": 3}
    chunks = streamed(client, "/v1/completions", fields)
    whole = complete(client, **fields)["logprobs"]
    for name in whole:
        assert sum((chunk["logprobs"][name] for chunk in chunks), []) == whole[name]
    messages = [{"role": "user", "content": "hi"}]
    fields = {"messages": messages, "max_tokens": COUNT, "logprobs": True, "top_logprobs": 3}
    chunks = streamed(client, "/v1/chat/completions", fields)
    entries = sum((chunk["logprobs"]["content"] for chunk in chunks if chunk["logprobs"]), [])
    assert entries == chat(client, logprobs=True, top_logprobs=3)["logprobs"]["content"]


def test_prompt_logprobs(client: httpx.Client) -> None:
    shown = complete(client, prompt="hey", prompt_logprobs=2)["prompt_logprobs"]
    assert shown[0] is None
    assert [str(byte) in entry for byte, entry in zip(b"hey", shown[1:], strict=True)] == [True] * 3
    assert shown[2][str(ord("e"))] == {"logprob": -0.25, "rank": 1, "decoded_token": "e"}
    fields = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "prompt_logprobs": 0}
    body = client.post("/v1/chat/completions", json=fields).json()
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]


def test_control_tokens_add_no_bytes() -> None:
    entry = TokenLogprobs(EOS, -math.inf, 300, ())
    hidden = chat_logprobs(TokenWriter(ByteTokenizer(), hide_special=True), [entry], 0)["content"][0]
    assert hidden == {"token": "</s>", "logprob": -9999.0, "bytes": [], "top_logprobs": []}
    shown = chat_logprobs(TokenWriter(ByteTokenizer(), hide_special=False), [entry], 0)["content"][0]
    assert bytes(shown["bytes"]) == b"</s>"


def test_offsets_go_on_between_deltas() -> None:
    builder = CompletionLogprobs(TokenWriter(ByteTokenizer(), hide_special=True), 0)
    ids = list("é!".encode())
    entries = [TokenLogprobs(token, -1.0, 1, ()) for token in ids]
    first = builder.add(entries[:1], ids[:1])
    rest = builder.add(entries[1:], ids[1:])
    assert first["text_offset"] + rest["text_offset"] == [0, 0, 1]
