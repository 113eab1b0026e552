"""langchain-openai: TYPING_URL MODEL_URL, servers of the fake engine and of SmolLM2-135M, both named "fake"."""

import json
import sys
from typing import Any

import openai
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict, Field
from running import hermes, refused, run_checks, typing

TYPING_URL, MODEL_URL = sys.argv[1:]
COMMON: dict[str, Any] = {"model": "fake", "api_key": "none", "max_retries": 0}
TEXT = "Hello 漢字 😀!"
CALL = "Let me see." + hermes("get_weather", '{"city": "Köln", "days": 3}')


class Person(BaseModel):
    """A person. By JSON Schema's rules it may have more properties than these unless that is forbidden, and then a
    small model may go on for ever; ``strict`` forbids it too."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


@tool
def get_weather(city: str, days: int = 1) -> str:
    """The weather of a city."""
    return f"{city}, {days} days: rain"


def chat(url: str = TYPING_URL, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{url}/v1", **COMMON, **more)


def check_invoke() -> None:
    message = chat().invoke([SystemMessage("Be short."), HumanMessage(typing(TEXT))])
    assert message.content == TEXT
    assert message.response_metadata["finish_reason"] == "stop"
    assert message.usage_metadata["output_tokens"] == len(TEXT) + 1
    assert message.usage_metadata["input_token_details"]["cache_read"] == 3
    cut = chat(max_tokens=3).invoke(typing(TEXT))
    assert (cut.content, cut.response_metadata["finish_reason"]) == ("Hel", "length")


def check_stream() -> None:
    chunks = list(chat(stream_usage=True).stream(typing(TEXT)))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.content == TEXT
    assert len(chunks) > 1
    assert whole.usage_metadata["output_tokens"] == len(TEXT) + 1
    assert whole.response_metadata["finish_reason"] == "stop"


async def check_async() -> None:
    model = chat()
    assert (await model.ainvoke(typing(TEXT))).content == TEXT
    assert "".join([chunk.content async for chunk in model.astream(typing(TEXT))]) == TEXT
    answers = await model.abatch([typing(f"answer {i}") for i in range(20)])
    assert [answer.content for answer in answers] == [f"answer {i}" for i in range(20)]


def check_batch() -> None:
    answers = chat().batch([typing(f"answer {i}") for i in range(20)], {"max_concurrency": 5})
    assert [answer.content for answer in answers] == [f"answer {i}" for i in range(20)]


def check_logprobs_and_choices() -> None:
    message = chat(MODEL_URL, logprobs=True, top_logprobs=2, max_tokens=4, temperature=0).invoke("Say hi.")
    listed = message.response_metadata["logprobs"]["content"]
    assert "".join(each["token"] for each in listed).startswith(message.content)
    assert all(len(each["top_logprobs"]) == 2 and each["logprob"] <= 0 for each in listed)
    (choices,) = chat(n=2).generate([[HumanMessage("x")]], max_tokens=10).generations
    assert [choice.text for choice in choices] == ["alpha beta", "beta gamma"]


def check_tools() -> None:
    model = chat().bind_tools([get_weather])
    message = model.invoke(typing(CALL, 3))
    whole = None
    for chunk in model.stream(typing(CALL, 3)):
        whole = chunk if whole is None else whole + chunk
    for found in (message, whole):
        assert found.content == "Let me see."
        (call,) = found.tool_calls
        assert (call["name"], call["args"]) == ("get_weather", {"city": "Köln", "days": 3})
        assert call["id"]
        assert found.response_metadata["finish_reason"] == "tool_calls"
    result = get_weather.invoke(message.tool_calls[0])
    assert isinstance(result, ToolMessage)
    answer = model.invoke([HumanMessage("Weather?"), message, result, HumanMessage(typing("It rains."))])
    assert (answer.content, answer.tool_calls) == ("It rains.", [])


def check_forced_tools() -> None:
    for choice in ("any", "get_weather", "required"):
        message = chat(MODEL_URL, max_tokens=200, temperature=0).bind_tools(
            [get_weather], tool_choice=choice, parallel_tool_calls=False
        )
        (call,) = message.invoke("Weather of Rome?").tool_calls
        assert call["name"] == "get_weather"
        assert isinstance(call["args"]["city"], str)


def check_structured_output() -> None:
    model = chat(MODEL_URL, max_tokens=100, temperature=0)
    for method in ("json_schema", "function_calling"):
        for strict in (None, True):
            person = model.with_structured_output(Person, method=method, strict=strict).invoke("Ada is 36.")
            assert isinstance(person, Person)
    raw = model.with_structured_output(Person, method="json_schema", include_raw=True).invoke("Ada is 36.")
    assert raw["parsing_error"] is None
    assert json.loads(raw["raw"].content) == raw["parsed"].model_dump()
    streamed = list(model.with_structured_output(Person.model_json_schema(), method="json_schema").stream("Ada is 36."))
    assert Person.model_validate(streamed[-1]) == raw["parsed"]
    text = '{"name": "Ada", "age": 36}'
    assert chat().with_structured_output(Person, method="json_mode").invoke(typing(text)) == Person(name="Ada", age=36)


async def check_structured_output_async() -> None:
    model = chat(MODEL_URL, max_tokens=100, temperature=0).with_structured_output(Person)
    assert isinstance(await model.ainvoke("Ada is 36."), Person)
    assert [each async for each in model.astream("Ada is 36.")][-1] == await model.ainvoke("Ada is 36.")


def check_responses_api() -> None:
    model = chat(use_responses_api=True, output_version="responses/v1")
    message = model.invoke(typing(TEXT))
    assert message.text == TEXT
    assert message.usage_metadata["output_tokens"] == len(TEXT) + 1
    assert "".join(chunk.text for chunk in model.stream(typing(TEXT))) == TEXT
    thought = model.invoke(typing("<think>Hm.</think>Yes."))
    assert thought.text == "Yes."
    bound = model.bind_tools([get_weather])
    asked = bound.invoke(typing(CALL, 3))
    (call,) = asked.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Köln", "days": 3})
    history = [HumanMessage("Weather?"), asked, get_weather.invoke(call), HumanMessage(typing("It rains."))]
    assert bound.invoke(history).text == "It rains."
    parsed = chat(MODEL_URL, use_responses_api=True, temperature=0).with_structured_output(Person).invoke("Ada is 36.")
    assert isinstance(parsed, Person)


def check_completions() -> None:
    model = OpenAI(base_url=f"{TYPING_URL}/v1", max_tokens=10, **COMMON)
    assert model.invoke("hello") == "alpha beta"
    assert "".join(model.stream("hello")) == "alpha beta"
    result = model.generate(["a", "bb", "ccc"])
    assert [each.text for (each,) in result.generations] == ["alpha beta"] * 3
    assert result.llm_output["token_usage"]["completion_tokens"] == 30


def check_embeddings() -> None:
    # By default this client tokenizes with OpenAI's own vocabulary, which no other model knows.
    model = OpenAIEmbeddings(base_url=f"{MODEL_URL}/v1", check_embedding_ctx_length=False, **COMMON)
    vectors = model.embed_documents(["The sky is blue.", "Grass is green.", "The sky is blue."])
    assert vectors[0] == vectors[2] == model.embed_query("The sky is blue.")
    assert vectors[0] != vectors[1]
    assert abs(sum(each**2 for each in vectors[0]) - 1) < 1e-5
    short = OpenAIEmbeddings(
        base_url=f"{MODEL_URL}/v1", check_embedding_ctx_length=False, dimensions=10, **COMMON
    ).embed_query("The sky is blue.")
    assert len(short) == 10


async def check_embeddings_async() -> None:
    model = OpenAIEmbeddings(base_url=f"{MODEL_URL}/v1", check_embedding_ctx_length=False, **COMMON)
    assert await model.aembed_query("One.") == model.embed_query("One.")


def check_errors() -> None:
    other = ChatOpenAI(base_url=f"{TYPING_URL}/v1", **COMMON | {"model": "other"})
    assert refused(openai.NotFoundError, other.invoke, "x").code == "model_not_found"
    assert refused(openai.BadRequestError, chat(temperature=-1).invoke, "x").param == "temperature"
    refused(ContextOverflowError, chat().invoke, "x" * 5000)
    assert refused(openai.BadRequestError, chat(MODEL_URL, max_tokens=4096).invoke, "x").param == "max_tokens"
    refused(openai.APIError, lambda: list(chat().stream("!fault")))


run_checks(dict(globals()))
