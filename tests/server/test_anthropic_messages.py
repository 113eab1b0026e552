"""POST /v1/messages with Anthropic's real client: whole, streamed, tools, thinking, errors; and the events as sent."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message

from tests.support.fake_engine import MODEL, typing
from tests.support.fake_server import ServerProcess, running_server
from tests.support.tool_calls import hermes
from tests.support.waiting import wait_until

WEATHER: Any = {
    "name": "get_weather",
    "description": "Of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = {"name": "get_weather", "arguments": {"city": "Köln"}}


@pytest.fixture(scope="module")
def api(thinking_server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=thinking_server.url, api_key="none", max_retries=0) as client:
        yield client


def user(content: Any) -> list[Any]:
    return [{"role": "user", "content": content}]


def ask(api: anthropic.Anthropic, text: str, cut: str | int = "each", **fields: Any) -> Message:
    """The answer to which the fake engine types ``text``, the same whole and streamed but for its id."""
    fields = {"model": MODEL, "max_tokens": 1000, "messages": user(typing(text, cut))} | fields
    whole: Message = api.messages.create(**fields)
    with api.messages.stream(**fields) as events:
        streamed = events.get_final_message()
    assert streamed.id != whole.id
    shown = streamed.to_dict() | {"id": whole.id}
    for block in shown["content"]:  # calls have ids of their own
        block.pop("id", None)
    expected = whole.to_dict()
    for block in expected["content"]:
        block.pop("id", None)
    assert {name: shown[name] for name in expected} == expected
    return whole


def blocks(message: Message) -> list[Any]:
    found: list[Any] = []
    for block in message.content:
        match block.type:
            case "text":
                found.append(block.text)
            case "thinking":
                found.append(("thinking", block.thinking))
            case "tool_use":
                assert block.id
                found.append((block.name, block.input))
    return found


def test_text(api: anthropic.Anthropic) -> None:
    message = ask(api, "Hello 漢字 😀!")
    assert blocks(message) == ["Hello 漢字 😀!"]
    assert (message.type, message.role, message.model, message.stop_reason) == (
        "message",
        "assistant",
        MODEL,
        "end_turn",
    )
    assert message.id.startswith("msg")


def test_usage_counts_each_token_once(api: anthropic.Anthropic) -> None:
    text = typing("abc", "each")
    usage = ask(api, "abc").usage
    counted = api.messages.count_tokens(model=MODEL, messages=user(text)).input_tokens
    assert usage.cache_read_input_tokens == 3
    assert usage.cache_creation_input_tokens == 0
    assert usage.input_tokens + usage.cache_read_input_tokens == counted
    assert usage.output_tokens == 4


def test_why_it_ended(api: anthropic.Anthropic) -> None:
    cut = ask(api, "abcdef", max_tokens=3)
    assert (blocks(cut), cut.stop_reason, cut.stop_sequence) == (["abc"], "max_tokens", None)
    stopped: Any = api.messages.create(
        model=MODEL, max_tokens=100, messages=user("x"), stop_sequences=["nothing", "gamma"]
    )
    assert (blocks(stopped), stopped.stop_reason, stopped.stop_sequence) == (["alpha beta "], "stop_sequence", "gamma")


@pytest.mark.parametrize("cut", ["each", "whole", 1, 2, 3])
def test_thinking_text_and_calls(api: anthropic.Anthropic, cut: str | int) -> None:
    text = "<think>Which city?</think>Let me see.\n" + hermes([CALL, CALL | {"arguments": {}}])
    message = ask(api, text, cut, tools=[WEATHER], thinking={"type": "adaptive"})
    called = [("get_weather", {"city": "Köln"}), ("get_weather", {})]
    assert blocks(message) == [("thinking", "Which city?"), "Let me see.\n", *called]
    assert message.stop_reason == "tool_use"
    single: Any = {"type": "auto", "disable_parallel_tool_use": True}
    message = ask(api, text, cut, tools=[WEATHER], tool_choice=single)
    assert blocks(message)[2:] == called[:1]


def test_a_call_that_is_cut_is_left_out(api: anthropic.Anthropic) -> None:
    text = hermes([CALL])
    message = api.messages.create(
        model=MODEL, max_tokens=len(text) - 20, messages=user(typing(text, "each")), tools=[WEATHER]
    )
    assert (blocks(message), message.stop_reason) == ([], "max_tokens")


@pytest.mark.parametrize("cut", ["each", "whole", 4])
def test_text_after_a_call_is_a_block_of_its_own(api: anthropic.Anthropic, cut: str | int) -> None:
    """In the order of the text, however much of it arrives at once."""
    message = ask(api, f"First {hermes([CALL])} and {hermes([CALL])}\nso", cut, tools=[WEATHER])
    called = ("get_weather", {"city": "Köln"})
    assert blocks(message) == ["First ", called, " and ", called, "\nso"]


@pytest.mark.parametrize("cut", ["each", "whole", 4])
def test_one_block_is_open_at_a_time(thinking_server: ServerProcess, cut: str | int) -> None:
    fields = {"max_tokens": 500, "tools": [WEATHER], "stream": True}
    open_block: int | None = None
    kinds = []
    for event in events_of(thinking_server, fields | {"messages": user(typing(hermes([CALL]) + " and", cut))}):
        if event["type"] == "content_block_start":
            assert open_block is None
            open_block = event["index"]
            kinds.append(event["content_block"]["type"])
        elif event["type"] == "content_block_delta":
            assert event["index"] == open_block
        elif event["type"] == "content_block_stop":
            assert event["index"] == open_block
            open_block = None
    assert open_block is None
    assert kinds == ["tool_use", "text"]


def events_of(server: ServerProcess, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    with server.client() as client, client.stream("POST", "/v1/messages", json=fields) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for piece in "".join(response.iter_text()).split("\n\n")[:-1]:
            name, data = piece.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            yield event


def test_events_in_their_order(thinking_server: ServerProcess) -> None:
    fields = {"max_tokens": 2, "messages": user(typing("ab", "each")), "stream": True}
    events = list(events_of(thinking_server, fields))
    kinds = [kind for kind, _ in itertools.groupby(event["type"] for event in events)]  # tokens may come together
    assert kinds == [
        *("message_start", "ping", "content_block_start", "content_block_delta"),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(deltas) == "ab"


async def test_async_client(thinking_server: ServerProcess) -> None:
    fields: Any = {"model": MODEL, "max_tokens": 100, "messages": user(typing("one two", 3))}
    async with anthropic.AsyncAnthropic(base_url=thinking_server.url, api_key="none", max_retries=0) as client:
        assert blocks(await client.messages.create(**fields)) == ["one two"]
        async with client.messages.stream(**fields) as stream:
            assert "".join([text async for text in stream.text_stream]) == "one two"


def check_prompt(client: httpx.Client, fields: dict[str, Any], messages: list[Any]) -> None:
    """The prompt of ``fields`` is that of the chat conversation ``messages``."""
    counted = client.post("/v1/messages/count_tokens", json=fields).json()["input_tokens"]
    chat = {"messages": messages} | ({"continue_final_message": True} if messages[-1]["role"] == "assistant" else {})
    assert counted == client.post("/tokenize", json=chat).json()["count"]


def test_prompts_are_those_of_chat(thinking_server: ServerProcess) -> None:
    """A conversation with a system prompt, a call, its result and words after it."""
    turns: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "I see."},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages: list[Any] = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "I see.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t", "content": "sunny"},
        {"role": "user", "content": "And now?"},
    ]
    with thinking_server.client() as client:
        check_prompt(client, {"system": "Be short.", "messages": turns}, messages)
        system = [{"type": "text", "text": "Be "}, {"type": "text", "text": "short."}]
        check_prompt(client, {"system": system, "messages": turns}, messages)
        begun: Any = {"role": "assistant", "content": "It is"}
        check_prompt(client, {"system": system, "messages": [*turns, begun]}, [*messages, begun])


def test_forced_calls(api: anthropic.Anthropic) -> None:
    """The text of a forced call is its arguments alone, here typed as they have to be."""
    message = ask(
        api, '{"city": "Köln"}', tools=[WEATHER], tool_choice={"type": "tool", "name": "get_weather"}, max_tokens=200
    )
    assert blocks(message) == [("get_weather", {"city": "Köln"})]
    message = ask(api, json.dumps([CALL]), tools=[WEATHER], tool_choice={"type": "any"}, max_tokens=200)
    assert blocks(message) == [("get_weather", {"city": "Köln"})]


def block(kind: str, **fields: Any) -> Any:
    return {"messages": user([{"type": kind} | fields])}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": None, "system": "Be short."}, "messages"),
        ({"messages": ["x"]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages"),
        ({"messages": user(5)}, "messages"),
        ({"messages": user(["x"])}, "messages"),
        (block("image", source={}), "messages"),
        (block("tool_result"), "messages"),
        (block("tool_result", tool_use_id="t", content=[{"type": "image"}]), "messages"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}]}, "messages"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"temperature": -1}, "temperature"),
        ({"tools": ["x"]}, "tools"),
        ({"tools": [{"name": "f"}]}, "tools"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "maybe"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": ["auto"]}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "tool_choice"),
        ({"thinking": "yes"}, "thinking"),
        ({"thinking": {"type": "maybe"}}, "thinking"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "what"}}}}, "output_config"),
        ({"output_config": 5}, "output_config"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_bad_values(thinking_server: ServerProcess, fields: dict[str, Any], param: str) -> None:
    body = {"model": MODEL, "max_tokens": 5, "messages": user("x")} | fields
    with thinking_server.client() as client:
        response = client.post("/v1/messages", json=body)
    assert response.status_code == 400, response.text
    error = response.json()
    assert error["type"] == "error"
    assert (error["error"]["type"], error["error"]["param"]) == ("invalid_request_error", param)


def test_fields_without_a_meaning_here_are_ignored(api: anthropic.Anthropic) -> None:
    message = ask(api, "a", metadata={"user_id": "u"}, service_tier="auto", extra_headers={"anthropic-version": "1"})
    assert blocks(message) == ["a"]


def test_errors_are_the_clients_own(api: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        api.messages.create(model="other", max_tokens=5, messages=user("x"))
    assert missing.value.type == "not_found_error"
    with pytest.raises(anthropic.BadRequestError):
        api.messages.create(model=MODEL, max_tokens=5, messages=[])
    with (
        pytest.raises(anthropic.InternalServerError),
        api.messages.stream(model=MODEL, max_tokens=5, messages=user("!fault")) as events,
    ):
        events.get_final_message()


def test_its_key_header() -> None:
    with running_server(api_keys=["secret"]) as running:
        url = running.wait_ready().url
        fields: Any = {"model": MODEL, "max_tokens": 5, "messages": user(typing("hi", "each"))}
        for given in ({"api_key": "secret"}, {"auth_token": "secret"}):
            with anthropic.Anthropic(base_url=url, max_retries=0, **given) as client:
                assert blocks(client.messages.create(**fields)) == ["hi"]
        with anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0) as client:
            with pytest.raises(anthropic.AuthenticationError) as refused:
                client.messages.create(**fields)
            assert refused.value.type == "authentication_error"


def test_a_client_that_leaves_frees_its_place(slow_server: ServerProcess) -> None:
    fields: Any = {"model": MODEL, "max_tokens": 4000, "messages": user("x")}
    with anthropic.Anthropic(base_url=slow_server.url, api_key="none", max_retries=0) as client:
        with client.messages.stream(**fields) as stream:
            next(iter(stream))
            assert slow_server.metric("vllm:num_requests_running") == 1
        with pytest.raises(anthropic.APITimeoutError):
            client.messages.create(timeout=0.3, **fields)
        wait_until(lambda: slow_server.metric("vllm:num_requests_running") == 0)
