"""POST /v1/responses with the real openai client: whole, streamed, parsed, tools, errors."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest
from openai.types.responses import Response

from tests.support.fake_engine import MODEL, typing
from tests.support.fake_server import ServerProcess
from tests.support.tool_calls import hermes
from tests.support.waiting import wait_until

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CALL = {"name": "get_weather", "arguments": {"city": "Köln"}}


@pytest.fixture(scope="module")
def api(thinking_server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{thinking_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def without_ids(response: Any) -> dict[str, Any]:
    shown = {name: value for name, value in response.to_dict().items() if name not in ("id", "created_at")}
    shown["output"] = [
        {name: value for name, value in item.items() if name not in ("id", "call_id", "parsed_arguments")}
        for item in shown["output"]
    ]
    return shown


def ask(api: openai.OpenAI, text: str, cut: str | int = "each", **fields: Any) -> Response:
    """The response to which the fake engine types ``text``, the same whole and streamed but for its ids."""
    fields = {"model": MODEL, "input": typing(text, cut)} | fields
    whole: Response = api.responses.create(**fields)
    events = list(api.responses.create(**fields, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == f"response.{whole.status}"
    assert without_ids(events[-1].response) == without_ids(whole)
    check_items(events)
    return whole


def check_items(events: list[Any]) -> None:
    """Each item is opened, told and closed before the next; its deltas joined are its text."""
    items: list[Any] = []
    text = ""
    for event in events[2:-1]:
        assert event.output_index == len(items) - (event.type != "response.output_item.added")
        if event.type == "response.output_item.added":
            assert not items or items[-1].status != "in_progress"
            items.append(event.item)
            text = ""
        elif event.type.endswith(".delta"):
            text += event.delta
        elif event.type.endswith("_text.done"):
            assert event.text == text
        elif event.type.endswith("arguments.done"):
            assert event.arguments == text
        elif event.type == "response.output_item.done":
            assert event.item.id == items[-1].id
            items[-1] = event.item
    assert [item.to_dict() for item in items] == [item.to_dict() for item in events[-1].response.output]


def shown(response: Response) -> list[Any]:
    found: list[Any] = []
    for item in response.output:
        match item.type:
            case "message":
                found.append("".join(part.text for part in item.content if part.type == "output_text"))
            case "reasoning":
                found.append(("thinking", "".join(part.text for part in item.content or [])))
            case "function_call":
                found.append((item.name, json.loads(item.arguments)))
    return found


def test_text(api: openai.OpenAI) -> None:
    response = ask(api, "Hello 漢字 😀!", metadata={"a": "b"}, instructions="Be short.")
    assert (response.output_text, response.status) == ("Hello 漢字 😀!", "completed")
    assert (response.store, response.metadata, response.instructions) == (False, {"a": "b"}, "Be short.")
    assert response.usage is not None
    assert response.usage.output_tokens == len("Hello 漢字 😀!") + 1
    assert response.usage.input_tokens_details.cached_tokens == 3
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_a_limit_makes_it_incomplete(api: openai.OpenAI) -> None:
    response = ask(api, "abcdef", max_output_tokens=3)
    assert (response.output_text, response.status) == ("abc", "incomplete")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[-1].to_dict()["status"] == "incomplete"


@pytest.mark.parametrize("cut", ["each", "whole", 1, 2, 3])
def test_thinking_text_and_calls(api: openai.OpenAI, cut: str | int) -> None:
    text = "<think>Which city?</think>Let me see.\n" + hermes([CALL, CALL | {"arguments": {"city": ""}}])
    response = ask(api, text, cut, tools=[WEATHER])
    called = [("get_weather", {"city": "Köln"}), ("get_weather", {"city": ""})]
    assert shown(response) == [("thinking", "Which city?"), "Let me see.\n", *called]
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == len("Which city?")
    assert shown(ask(api, text, cut, tools=[WEATHER], parallel_tool_calls=False))[2:] == called[:1]


@pytest.mark.parametrize("cut", ["each", "whole", 4])
def test_text_after_a_call_is_an_item_of_its_own(api: openai.OpenAI, cut: str | int) -> None:
    response = ask(api, f"First {hermes([CALL])} and", cut, tools=[WEATHER])
    assert shown(response) == ["First ", ("get_weather", {"city": "Köln"}), " and"]


def test_forced_calls(api: openai.OpenAI) -> None:
    named = {"type": "function", "name": "get_weather"}
    called = [("get_weather", {"city": "Köln"})]
    assert shown(ask(api, '{"city": "Köln"}', tools=[WEATHER], tool_choice=named)) == called
    assert shown(ask(api, json.dumps([CALL]), tools=[WEATHER], tool_choice="required")) == called
    assert shown(ask(api, hermes([CALL]), tools=[WEATHER], tool_choice="none")) == [hermes([CALL])]


class Person(pydantic.BaseModel):
    name: str
    age: int


def test_the_clients_own_stream_and_parser(api: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "input": typing('{"name": "Ada", "age": 36}', 3)}
    assert api.responses.parse(**asked, text_format=Person).output_parsed == Person(name="Ada", age=36)
    with api.responses.stream(**asked, text_format=Person) as events:
        kinds = {event.type for event in events}
        assert events.get_final_response().output_parsed == Person(name="Ada", age=36)
    assert {"response.output_text.delta", "response.output_text.done", "response.completed"} <= kinds


async def test_async_client(thinking_server: ServerProcess) -> None:
    asked: Any = {"model": MODEL, "input": typing("one two", 3)}
    async with openai.AsyncOpenAI(base_url=f"{thinking_server.url}/v1", api_key="none", max_retries=0) as client:
        assert (await client.responses.create(**asked)).output_text == "one two"
        events = [event async for event in await client.responses.create(**asked, stream=True)]
        assert events[-1].type == "response.completed"


def num_prompt_tokens(api: openai.OpenAI, **fields: Any) -> int:
    usage = api.responses.create(model=MODEL, max_output_tokens=1, **fields).usage
    assert usage is not None
    return usage.input_tokens


def test_prompts_are_those_of_chat(api: openai.OpenAI, thinking_server: ServerProcess) -> None:
    items: list[Any] = [
        {"role": "developer", "content": "Also kind."},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I see."}]},
        {"type": "function_call", "call_id": "t", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "t", "output": "sunny"},
        {"role": "user", "content": "And now?"},
    ]
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "system", "content": "Also kind."},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "I see.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t", "content": "sunny"},
        {"role": "user", "content": "And now?"},
    ]
    with thinking_server.client() as client:
        expected = client.post("/tokenize", json={"messages": messages}).json()["count"]
    assert num_prompt_tokens(api, input=items, instructions="Be short.") == expected


def test_what_came_can_be_sent_back(api: openai.OpenAI) -> None:
    text = "<think>Hm.</think>Let me see.\n" + hermes([CALL])
    first = ask(api, text, tools=[WEATHER])
    call = first.output[-1]
    assert call.type == "function_call"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    back: list[Any] = [{"role": "user", "content": "Weather?"}, *first.output, result]
    assert num_prompt_tokens(api, input=back, tools=[WEATHER]) > num_prompt_tokens(api, input=back[:1], tools=[WEATHER])


def item(**fields: Any) -> dict[str, Any]:
    return {"input": [fields]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["x"]}, "input"),
        (item(type="item_reference", id="x"), "input"),
        (item(type=["message"]), "input"),
        (item(role="tool", content="x"), "input"),
        (item(role=["user"], content="x"), "input"),
        (item(role="user"), "input"),
        (item(role="user", content=[{"type": "input_image"}]), "input"),
        (item(role="user", content=[5]), "input"),
        (item(type="function_call", call_id="c"), "input"),
        (item(type="function_call", call_id="c", name="f", arguments="{"), "input"),
        (item(type="function_call_output", output="x"), "input"),
        (item(type="reasoning", content=5), "input"),
        (item(type="reasoning", content=[5]), "input"),
        ({"instructions": 5}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 100_000}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"text": "x"}, "text"),
        ({"text": {"format": 5}}, "text"),
        ({"text": {"format": {"type": "xml"}}}, "text"),
        ({"text": {"format": {"type": "json_schema"}}}, "text"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": "what"}}}}, "text"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": ["x"]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "maybe"}, "tool_choice"),
        ({"reasoning": "much"}, "reasoning"),
        ({"metadata": "x"}, "metadata"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True}, "background"),
        ({"store": True}, "store"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"seed": -1}, "seed"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_bad_values(thinking_server: ServerProcess, fields: dict[str, Any], param: str) -> None:
    with thinking_server.client() as client:
        response = client.post("/v1/responses", json={"model": MODEL, "input": "x"} | fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_fields_without_a_meaning_here_are_ignored(api: openai.OpenAI) -> None:
    fields: Any = {"user": "u", "include": ["reasoning.encrypted_content"], "store": False, "service_tier": "auto"}
    assert ask(api, "a", **fields, reasoning={"effort": "low"}).output_text == "a"


def test_errors(api: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        api.responses.create(model="other", input="x")
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError):
            api.responses.create(model=MODEL, input="!fault", stream=stream)


def test_a_client_that_leaves_frees_its_place(slow_server: ServerProcess) -> None:
    fields: Any = {"model": MODEL, "input": "x", "max_output_tokens": 4000}
    with openai.OpenAI(base_url=f"{slow_server.url}/v1", api_key="none", max_retries=0) as client:
        with client.responses.create(**fields, stream=True) as stream:
            next(iter(stream))
            assert slow_server.metric("vllm:num_requests_running") == 1
        with pytest.raises(openai.APITimeoutError):
            client.responses.create(timeout=0.3, **fields)
        wait_until(lambda: slow_server.metric("vllm:num_requests_running") == 0)
