"""The real ``openai`` client against the server: what it parses is what users get."""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.byte_tokenizer import BOS
from tests.support.fake_engine import SCRIPT, script_tokens
from tests.support.fake_server import MODEL, ServerProcess

USER = {"role": "user", "content": "hello"}


@pytest.fixture
def api(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def typed(choice: int, count: int) -> str:
    return bytes(script_tokens(choice, count)).decode()


def test_models(api: openai.OpenAI) -> None:
    (model,) = api.models.list().data
    assert model.id == MODEL
    assert model.model_dump()["max_model_len"] == 512


def test_completion(api: openai.OpenAI) -> None:
    answer = api.completions.create(model=MODEL, prompt="hello", max_tokens=10)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason, choice.logprobs) == ("alpha beta", "length", None)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (6, 10, 16)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


def test_max_tokens_absent(api: openai.OpenAI) -> None:
    """DECISION D28: 16 for completions, the room left for chat."""
    answer = api.completions.create(model=MODEL, prompt="x")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    chat = api.chat.completions.create(model=MODEL, messages=[USER])
    assert chat.usage is not None
    assert chat.usage.total_tokens == 512
    # D2, D12: a default is shortened to the room left.
    answer = api.completions.create(model=MODEL, prompt=[65] * 508)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


def test_several_prompts_and_choices(api: openai.OpenAI) -> None:
    """B31: prompts counted once, choices summed; choice i of prompt p has index p * n + i."""
    answer = api.completions.create(model=MODEL, prompt=["a", "bb", "ccc"], n=2, max_tokens=8)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert [choice.text for choice in answer.choices] == [typed(0, 8), typed(1, 8)] * 3
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2 + 3 + 4, 6 * 8)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 9


@pytest.mark.parametrize("include_usage", [None, False, True])
def test_stream_equals_whole(api: openai.OpenAI, include_usage: bool | None) -> None:
    """B13, B31: joined deltas are the whole answer; one finish_reason a choice; usage once, last, only if asked for."""
    options: dict[str, Any] = {} if include_usage is None else {"stream_options": {"include_usage": include_usage}}
    chunks = list(api.completions.create(model=MODEL, prompt=["a", "b"], n=2, max_tokens=40, stream=True, **options))
    texts, reasons = dict.fromkeys(range(4), ""), []
    for chunk in chunks:
        for choice in chunk.choices:
            assert "\ufffd" not in choice.text
            texts[choice.index] += choice.text
            if choice.finish_reason:
                reasons.append((choice.index, choice.finish_reason))
    assert texts == {0: typed(0, 40), 1: typed(1, 40), 2: typed(0, 40), 3: typed(1, 40)}
    assert sorted(reasons) == [(i, "length") for i in range(4)]
    with_usage = [chunk for chunk in chunks if chunk.usage is not None]
    if include_usage:
        assert with_usage == [chunks[-1]]
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (4, 160)
    else:
        assert with_usage == []


def test_chat(api: openai.OpenAI) -> None:
    answer = api.chat.completions.create(model=MODEL, messages=[USER], max_completion_tokens=5, n=2)
    assert [choice.message.content for choice in answer.choices] == [typed(0, 5), typed(1, 5)]
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("user: hello\nassistant: ") + 1


def test_chat_stream(api: openai.OpenAI) -> None:
    stream = api.chat.completions.create(
        model=MODEL, messages=[USER], max_tokens=45, n=2, stream=True, stream_options={"include_usage": True}
    )
    texts, roles = {0: "", 1: ""}, {0: 0, 1: 0}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            roles[choice.index] += choice.delta.role == "assistant"
    assert texts == {0: typed(0, 45), 1: typed(1, 45)}
    assert roles == {0: 1, 1: 1}
    assert chunk.usage is not None
    assert chunk.usage.completion_tokens == 90


def test_stop_and_eos(api: openai.OpenAI) -> None:
    """D10: all generated tokens count, those of the stop string and EOS too."""
    answer = api.completions.create(model=MODEL, prompt="x", max_tokens=100, stop=[" gamma"])
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("alpha beta", "stop")
    assert answer.choices[0].model_dump()["stop_reason"] == " gamma"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len("alpha beta gamma")
    answer = api.completions.create(model=MODEL, prompt="!ends", max_tokens=100)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("alpha", "stop")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6


def test_echo_and_token_ids(api: openai.OpenAI) -> None:
    more = {"return_token_ids": True}
    answer = api.completions.create(model=MODEL, prompt="say: ", echo=True, max_tokens=5, extra_body=more)
    assert answer.choices[0].text == "say: alpha"
    shown = answer.choices[0].model_dump()
    assert shown["prompt_token_ids"] == [BOS, *b"say: "]
    assert shown["token_ids"] == list(b"alpha")
    answer = api.completions.create(model=MODEL, prompt=list(b"ids "), echo=True, max_tokens=5)
    assert answer.choices[0].text == "ids alpha"
    stream = api.completions.create(model=MODEL, prompt="s", echo=True, max_tokens=5, stream=True, extra_body=more)
    chunks = [chunk.choices[0].model_dump() for chunk in stream]
    assert "".join(chunk["text"] for chunk in chunks) == "salpha"
    assert sum((chunk["token_ids"] for chunk in chunks), []) == list(b"alpha")
    assert [chunk["prompt_token_ids"] for chunk in chunks if chunk["prompt_token_ids"]] == [[BOS, *b"s"]]


def test_chat_template_options(api: openai.OpenAI) -> None:
    def prompt_of(messages: list[Any], **more: Any) -> str:
        answer = api.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=1, extra_body={"return_token_ids": True, **more}
        )
        ids = answer.model_dump()["prompt_token_ids"]
        assert ids[0] == BOS
        return bytes(ids[1:]).decode()

    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert prompt_of(parts) == "user: ab\nassistant: "
    assert prompt_of([USER], add_generation_prompt=False) == "user: hello\n"
    begun = [USER, {"role": "assistant", "content": "Well, "}]
    assert prompt_of(begun, continue_final_message=True) == "user: hello\nassistant: Well, "
    assert prompt_of([USER], chat_template_kwargs={"prefix": "!"}) == "!user: hello\nassistant: "


def test_errors_are_the_clients_own(api: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        api.completions.create(model="other", prompt="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as too_long:
        api.completions.create(model=MODEL, prompt="x", max_tokens=600)  # D2: the client's own number
    assert (too_long.value.param, too_long.value.type) == ("max_tokens", "invalid_request_error")
    assert too_long.value.code == "context_length_exceeded"
    assert "600" in str(too_long.value)
    for prompt in ("x" * 600, [65] * 512):
        with pytest.raises(openai.BadRequestError, match="maximum context length is 512 tokens") as too_long:
            api.completions.create(model=MODEL, prompt=prompt)
        assert (too_long.value.param, too_long.value.code) == ("prompt", "context_length_exceeded")
    with pytest.raises(openai.InternalServerError, match="told to fail"):
        api.completions.create(model=MODEL, prompt="!fault")
    with pytest.raises(openai.APIError, match="told to fail"):
        list(api.completions.create(model=MODEL, prompt="!fault", stream=True))


async def test_many_at_once(server: ServerProcess) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as api:

        async def one(length: int) -> str:
            stream = await api.chat.completions.create(model=MODEL, messages=[USER], max_tokens=length, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        lengths = [5 * i for i in range(1, 33)]
        answers = await asyncio.gather(*map(one, lengths))
    whole = (SCRIPT * 10).encode()
    assert [answer.rstrip("\ufffd") for answer in answers] == [whole[:n].decode(errors="ignore") for n in lengths]
