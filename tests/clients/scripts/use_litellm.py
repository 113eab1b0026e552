"""litellm: TYPING_URL MODEL_URL, servers of the fake engine and of SmolLM2-135M, both named "fake".

Each check runs for the two ways to name such a server: openai/NAME, and hosted_vllm/NAME.
"""

import asyncio
import json
import sys
from typing import Any

import litellm
from pydantic import BaseModel, ConfigDict
from running import hermes, refused, run_checks, typing

TYPING_URL, MODEL_URL = sys.argv[1:]
litellm.suppress_debug_info = True
CHAT_MODELS = ("openai/fake", "hosted_vllm/fake")
TEXT = "Hello 漢字 😀!"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CALL = "Let me see." + hermes("get_weather", '{"city": "Köln"}')


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    age: int


def at(url: str, **more: Any) -> dict[str, Any]:
    return {"api_base": f"{url}/v1", "api_key": "none", "max_retries": 0} | more


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def joined(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def check_completion() -> None:
    for model in CHAT_MODELS:
        answer = litellm.completion(model=model, messages=user(typing(TEXT)), **at(TYPING_URL))
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (TEXT, "stop")
        assert answer.usage.completion_tokens == len(TEXT) + 1
        assert answer.usage.prompt_tokens_details.cached_tokens == 3
        cut = litellm.completion(model=model, messages=user(typing(TEXT)), max_tokens=3, **at(TYPING_URL))
        assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("Hel", "length")


def check_stream() -> None:
    for model in CHAT_MODELS:
        asked = {"model": model, "messages": user(typing(TEXT)), "stream": True, **at(TYPING_URL)}
        chunks = list(litellm.completion(**asked, stream_options={"include_usage": True}))
        assert joined(chunks) == TEXT
        (usage,) = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
        assert usage.completion_tokens == len(TEXT) + 1
        built = litellm.stream_chunk_builder(chunks)
        assert (built.choices[0].message.content, built.choices[0].finish_reason) == (TEXT, "stop")


async def check_async() -> None:
    for model in CHAT_MODELS:
        asked = [{"model": model, "messages": user(typing(f"answer {i}")), **at(TYPING_URL)} for i in range(20)]
        answers = await asyncio.gather(*[litellm.acompletion(**each) for each in asked])
        assert [answer.choices[0].message.content for answer in answers] == [f"answer {i}" for i in range(20)]
        stream = await litellm.acompletion(model=model, messages=user(typing(TEXT)), stream=True, **at(TYPING_URL))
        assert joined([chunk async for chunk in stream]) == TEXT


def check_tools_and_thinking() -> None:
    for model in CHAT_MODELS:
        asked = {"model": model, "messages": user(typing("<think>Hm.</think>" + CALL, 3)), "tools": [TOOL]}
        whole = litellm.completion(**asked, **at(TYPING_URL))
        chunks = list(litellm.completion(**asked, **at(TYPING_URL), stream=True))
        for answer in (whole, litellm.stream_chunk_builder(chunks)):
            message = answer.choices[0].message
            (call,) = message.tool_calls
            assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Köln"})
            assert (message.content, message.reasoning_content) == ("Let me see.", "Hm.")
            assert answer.choices[0].finish_reason == "tool_calls"
        message = whole.choices[0].message
        history = [
            *user("Weather?"),
            message.model_dump(),
            {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"},
            *user(typing("It rains.")),
        ]
        answer = litellm.completion(model=model, messages=history, tools=[TOOL], **at(TYPING_URL))
        assert answer.choices[0].message.content == "It rains."


def check_constrained() -> None:
    for model in CHAT_MODELS:
        asked = at(MODEL_URL, model=model, messages=user("Ada is 36."), max_tokens=100, temperature=0)
        Person.model_validate_json(litellm.completion(**asked, response_format=Person).choices[0].message.content)
        forced = litellm.completion(**asked, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
        (call,) = forced.choices[0].message.tool_calls
        assert isinstance(json.loads(call.function.arguments)["city"], str)


async def check_text_completion() -> None:
    for model in ("text-completion-openai/fake", "hosted_vllm/fake"):
        asked = at(TYPING_URL, model=model, prompt="hello", max_tokens=10)
        answer = litellm.text_completion(**asked)
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("alpha beta", "length")
        assert "".join(chunk.choices[0].text or "" for chunk in litellm.text_completion(**asked, stream=True)) == (
            "alpha beta"
        )
        assert (await litellm.atext_completion(**asked)).choices[0].text == "alpha beta"


async def check_embeddings() -> None:
    texts = ["The sky is blue.", "Grass is green."]
    for model in ("openai/fake", "hosted_vllm/fake"):
        found = [each["embedding"] for each in litellm.embedding(model=model, input=texts, **at(MODEL_URL)).data]
        again = await litellm.aembedding(model=model, input=texts[0], **at(MODEL_URL))
        assert again.data[0]["embedding"] == found[0] != found[1]
        assert abs(sum(each**2 for each in found[0]) - 1) < 1e-5


def check_other_apis() -> None:
    answer = litellm.responses(model="openai/fake", input=typing(TEXT), **at(TYPING_URL))
    assert answer.output[-1].content[0].text == TEXT
    message = litellm.completion(
        model="anthropic/fake", messages=user(typing(TEXT)), max_tokens=100, api_base=TYPING_URL, api_key="none"
    )
    assert message.choices[0].message.content == TEXT
    stream = litellm.completion(
        model="anthropic/fake",
        messages=user(typing(CALL, 3)),
        max_tokens=100,
        tools=[TOOL],
        stream=True,
        api_base=TYPING_URL,
        api_key="none",
    )
    (call,) = litellm.stream_chunk_builder(list(stream)).choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Köln"}


def ask(text: str, **fields: Any) -> Any:
    answer = litellm.completion(messages=user(text), **fields)
    return list(answer) if fields.get("stream") else answer


def check_errors() -> None:
    for model in CHAT_MODELS:
        asked = at(TYPING_URL, model=model)
        refused(litellm.NotFoundError, ask, "x", **asked | {"model": model.replace("fake", "other")})
        refused(litellm.BadRequestError, ask, "x", temperature=-1, **asked)
        refused(litellm.ContextWindowExceededError, ask, "x" * 5000, **asked)
        refused(litellm.ContextWindowExceededError, ask, "x", max_tokens=4096, **at(MODEL_URL, model=model))
        refused(litellm.InternalServerError, ask, "!fault", **asked)
        refused(litellm.InternalServerError, ask, "!fault", stream=True, **asked)


run_checks(dict(globals()))
