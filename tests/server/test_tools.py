"""B42 through HTTP and the real openai client: tool calls, streamed and not, whatever the tokens."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pydantic
import pytest

from tests.support.fake_engine import MODEL, typing
from tests.support.fake_server import ServerProcess, running_server
from tests.support.tool_calls import hermes, qwen3_coder


def tool(name: str, **function: Any) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}} | function}


TOOLS = [tool("get_weather", description="Of a city"), tool("add")]
BERLIN = '{"name": "get_weather", "arguments": {"city": "Berlin"}}'


@pytest.fixture(scope="module")
def hermes_server() -> Iterator[ServerProcess]:
    with running_server({"max_model_len": 4096}, tool_call_parser="hermes") as running:
        yield running.wait_ready()


@pytest.fixture(scope="module")
def api(hermes_server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{hermes_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@dataclass
class Said:
    """One choice as a client puts it together."""

    content: str | None = None
    calls: list[tuple[str, str]] = field(default_factory=list)
    reason: str | None = None


def ask(api: openai.OpenAI, text: str, cut: str | int = "each", **fields: Any) -> Said:
    """The answer, not streamed, to which the fake engine types ``text``."""
    messages: Any = [{"role": "user", "content": typing(text, cut)}]
    answer = api.chat.completions.create(model=MODEL, messages=messages, **{"tools": TOOLS} | fields)
    message = answer.choices[0].message
    calls = message.tool_calls or []
    assert len({call.id for call in calls}) == len(calls)
    assert all(call.type == "function" and call.id.startswith("call_") for call in calls)
    called = [(call.function.name, call.function.arguments) for call in calls if call.type == "function"]
    return Said(message.content or None, called, answer.choices[0].finish_reason)


def stream(api: openai.OpenAI, text: str, cut: str | int = "each", **fields: Any) -> Said:
    """The same, streamed; checks what holds of every stream."""
    messages: Any = [{"role": "user", "content": typing(text, cut)}]
    said = Said()
    for chunk in api.chat.completions.create(model=MODEL, messages=messages, stream=True, **{"tools": TOOLS} | fields):
        (choice,) = chunk.choices
        assert said.reason is None, "news of a choice that has ended"
        said.content = (said.content or "") + choice.delta.content if choice.delta.content else said.content
        for call in choice.delta.tool_calls or []:
            assert call.function is not None
            if call.index == len(said.calls):  # the first delta of an index, and none but it, has id and name
                assert call.id
                assert call.type == "function"
                assert call.function.name
                said.calls.append((call.function.name, ""))
            else:
                assert call.index == len(said.calls) - 1
                assert (call.id, call.function.name) == (None, None)
            name, arguments = said.calls[call.index]
            said.calls[call.index] = (name, arguments + (call.function.arguments or ""))
        said.reason = choice.finish_reason
    return said


ARGUMENTS: list[Any] = [
    {},
    {"n": 5, "s": "a"},
    {"a": {"b": [1, {"c": []}, [[]]], "d": {}}, "e": [True, None, -1.5e-7]},
    {"s": '}{]["\\ \n\t </tool_call> <tool_call> {"name": "x"}'},
    {"漢字": "東京 😀 é e\u0301"},
    {"text": "long " * 100},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=lambda value: json.dumps(value)[:20])
@pytest.mark.parametrize("cut", ["each", "whole", 1, 2])
def test_arguments(api: openai.OpenAI, arguments: Any, cut: str | int) -> None:
    text = hermes([{"name": "add", "arguments": arguments}])
    said = ask(api, text, cut)
    assert (said.content, said.reason) == (None, "tool_calls")
    assert [(name, json.loads(given)) for name, given in said.calls] == [("add", arguments)]
    assert stream(api, text, cut) == said


TEXTS = {
    "two": f"<tool_call>\n{BERLIN}\n</tool_call>\n<tool_call>\n" + '{"name": "add", "arguments": {}}\n</tool_call>',
    "text before": f"Let me see.\n<tool_call>\n{BERLIN}\n</tool_call>",
    "blanks": f" \n<tool_call>  {BERLIN} \n\n</tool_call>\n\n <tool_call>{BERLIN}</tool_call> \n",
    "arguments first": '<tool_call>{"arguments": {"a": "</tool_call>"}, "name": "add"}</tool_call>',
    "no call": "Just words, a < b and <tool_box>.",
    "not JSON": "<tool_call>\nget_weather(Berlin)\n</tool_call>",
    "JSON that breaks": '<tool_call>{"name": "add", "arguments": {"a": 1,}}</tool_call>',
    "unknown function": '<tool_call>{"name": "sub", "arguments": {}}</tool_call>',
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_100_random_cuts(api: openai.OpenAI, text: str) -> None:
    said = ask(api, text, "whole")
    assert stream(api, text, "whole") == stream(api, text, "each") == ask(api, text, "each") == said
    for seed in range(100 if text == TEXTS["two"] else 10):
        assert stream(api, text, seed) == said


def test_what_each_text_says(api: openai.OpenAI) -> None:
    berlin = ("get_weather", '{"city": "Berlin"}')
    said = {name: ask(api, text) for name, text in TEXTS.items()}
    assert said["two"] == Said(None, [berlin, ("add", "{}")], "tool_calls")
    assert said["text before"] == Said("Let me see.\n", [berlin], "tool_calls")
    assert said["blanks"] == Said(None, [berlin, berlin], "tool_calls")
    assert said["arguments first"] == Said(None, [("add", '{"a": "</tool_call>"}')], "tool_calls")
    for name in ("no call", "not JSON", "JSON that breaks", "unknown function"):
        assert said[name] == Said(TEXTS[name], [], "stop")


def test_a_call_that_is_cut(api: openai.OpenAI) -> None:
    """DECISION D11: "length" and the part so far; calls that are whole are whole."""
    text = f"Hm. <tool_call>\n{BERLIN}\n</tool_call>"
    for length in range(4, len(text) + 1):
        said = ask(api, text, max_tokens=length)
        assert stream(api, text, max_tokens=length) == said
        is_whole = length > text.index("}}") + 1
        assert said.reason == ("tool_calls" if is_whole else "length")
        if length >= text.index("\n"):
            assert said.content == "Hm. "
        if length > text.index('"arguments'):
            (given,) = said.calls
            assert given[0] == "get_weather"
            assert '{"city": "Berlin"}'.startswith(given[1])
    more = f"<tool_call>{BERLIN}</tool_call> and"
    said = ask(api, f"{more} more", max_tokens=len(more))
    assert (said.content, said.reason) == (" and", "length")


def test_one_call_at_a_time(api: openai.OpenAI) -> None:
    for asked in (ask, stream):
        said = asked(api, TEXTS["two"], parallel_tool_calls=False)
        assert said == Said(None, [("get_weather", '{"city": "Berlin"}')], "tool_calls")
        assert len(asked(api, TEXTS["two"], parallel_tool_calls=True).calls) == 2
    long = '{"name": "add", "arguments": {"a": "' + "long " * 100
    broken = f"<tool_call>{BERLIN}</tool_call><tool_call>{long}" + '", b}}</tool_call>'
    for asked in (ask, stream):  # what is left out does not count, broken or not
        said = asked(api, broken, parallel_tool_calls=False)
        assert (said.calls, said.reason) == ([("get_weather", '{"city": "Berlin"}')], "tool_calls")
        assert asked(api, broken, parallel_tool_calls=True).reason == "stop"


def test_calls_are_looked_for_only_where_there_are_tools(api: openai.OpenAI) -> None:
    text = f"<tool_call>{BERLIN}</tool_call>"
    for fields in ({"tools": openai.omit}, {"tool_choice": "none"}):
        assert ask(api, text, **fields) == stream(api, text, **fields) == Said(text, [], "stop")


def test_choices_are_read_apart(api: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": typing(TEXTS["two"], 3)}]
    answer = api.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, n=3)
    calls = [choice.message.tool_calls or [] for choice in answer.choices]
    assert [len(each) for each in calls] == [2, 2, 2]
    assert len({call.id for each in calls for call in each}) == 6


def test_the_clients_own_accumulator(api: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": typing(TEXTS["two"], "each")}]
    strict = [tool(each["function"]["name"], strict=True) for each in TOOLS]
    with api.chat.completions.stream(model=MODEL, messages=messages, tools=strict) as events:
        completion = events.get_final_completion()
    calls = completion.choices[0].message.tool_calls or []
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("get_weather", '{"city": "Berlin"}'),
        ("add", "{}"),
    ]


class Add(pydantic.BaseModel):
    a: int
    b: list[int] = []


def test_arguments_parsed_by_the_client(api: openai.OpenAI) -> None:
    text = hermes([{"name": "Add", "arguments": {"a": 1, "b": [2, 3]}}])
    messages: Any = [{"role": "user", "content": typing(text, "each")}]
    answer = api.chat.completions.parse(model=MODEL, messages=messages, tools=[openai.pydantic_function_tool(Add)])
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == Add(a=1, b=[2, 3])


async def test_async_client(hermes_server: ServerProcess) -> None:
    messages: Any = [{"role": "user", "content": typing(TEXTS["text before"], 5)}]
    async with openai.AsyncOpenAI(base_url=f"{hermes_server.url}/v1", api_key="none", max_retries=0) as client:
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model=MODEL, messages=messages, tools=TOOLS, stream=True, stream_options={"include_usage": True}
            )
        ]
    assert chunks[-2].choices[0].finish_reason == "tool_calls"
    assert chunks[-1].usage is not None


def prompt_of(api: openai.OpenAI, messages: list[Any], **fields: Any) -> str:
    answer = api.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=1, extra_body={"return_token_ids": True}, **fields
    )
    return bytes(answer.model_dump()["prompt_token_ids"][1:]).decode()


def test_the_conversation_goes_on(api: openai.OpenAI) -> None:
    """What the server answered comes back as the client has it, and templates get arguments as objects."""
    messages: list[Any] = [{"role": "user", "content": typing(TEXTS["text before"], 1)}]
    answer = api.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
    message = answer.choices[0].message
    call = (message.tool_calls or [])[0]
    messages = [
        *messages,
        message,
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        {"role": "assistant", "content": "It is sunny.", "tool_calls": []},
        {"role": "user", "content": "And?"},
    ]
    prompt = prompt_of(api, messages, tools=TOOLS)
    assert prompt.startswith(f"{json.dumps(TOOLS[0])}\n{json.dumps(TOOLS[1])}\nuser: ")
    assert prompt.endswith(
        'assistant: Let me see.\n{"arguments": {"city": "Berlin"}, "name": "get_weather"}\ntool: sunny\n'
        "assistant: It is sunny.\nuser: And?\nassistant: "
    )
    marked = [TOOLS[0] | {"cache_control": {"type": "ephemeral"}}, TOOLS[1]]
    assert prompt_of(api, messages, tools=marked) == prompt
    assert json.dumps(TOOLS[0]) not in prompt_of(api, messages, tools=TOOLS, tool_choice="none")


def test_tokenize_shows_tools(hermes_server: ServerProcess) -> None:
    with hermes_server.client() as client:
        body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
        assert client.post("/tokenize", json=body).json()["count"] > len(json.dumps(TOOLS))
        assert client.post("/tokenize", json=body | {"tools": [{}]}).status_code == 400


CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def with_calls(*calls: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": calls}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": "add"}, "tools"),
        ({"tools": ["add"]}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "search", "function": {"name": "add"}}]}, "tools"),
        ({"tools": [tool("")]}, "tools"),
        ({"tools": [tool("x" * 257)]}, "tools"),
        ({"tools": [tool("add", parameters="none")]}, "tools"),
        ({"tools": [tool("add", description=5)]}, "tools"),
        ({"tools": [tool("add", strict="yes")]}, "tools"),
        ({"tools": [tool("add")] * 257}, "tools"),
        ({"tools": [tool("add", description="x" * 60_000)]}, "tools"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tool_choice"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": {"type": "function", "function": {"name": "add"}}}, "tool_choice"),
        ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
        (with_calls("call"), "messages"),
        (with_calls(CALL | {"type": "search"}), "messages"),
        (with_calls(CALL | {"function": {"arguments": "{}"}}), "messages"),
        (with_calls(CALL | {"function": {"name": "add", "arguments": "{"}}), "messages"),
        (with_calls(CALL | {"function": {"name": "add", "arguments": "[1]"}}), "messages"),
        (with_calls(CALL | {"function": {"name": "add", "arguments": "[" * 100_000}}), "messages"),
        (with_calls(CALL | {"function": {"name": "add", "arguments": json.dumps({"a": "x" * 60_000})}}), "messages"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": {}}]}, "messages"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_bad_values(hermes_server: ServerProcess, fields: dict[str, Any], param: str) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "max_tokens": 1}
    with hermes_server.client() as client:
        response = client.post("/v1/chat/completions", json=body | fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_values_at_their_limits(hermes_server: ServerProcess) -> None:
    many = [tool(f"t{i}", parameters=None) | {"function": {"name": f"t{i}"}} for i in range(256)]
    with hermes_server.client() as client:
        for fields in (
            {"tools": many[:60]},
            {"tools": [], "tool_choice": "auto"},
            {"tools": None, "tool_choice": "none"},
            {"tools": [tool("x" * 256, strict=False, description=None)]},
            with_calls(
                CALL, CALL | {"function": {"name": "add", "arguments": None}}, CALL | {"function": {"name": "a"}}
            ),
        ):
            body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1} | fields
            response = client.post("/v1/chat/completions", json=body)
            assert response.status_code == 200, response.text


def test_a_server_that_knows_no_calls_says_so(client: httpx.Client) -> None:
    """Its template shows none, and no parser was named."""
    body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "max_tokens": 1}
    error = client.post("/v1/chat/completions", json=body).json()["error"]
    assert error["param"] == "tool_choice"
    assert "--tool-call-parser" in error["message"]


def test_deciding_can_be_switched_off() -> None:
    with running_server(tool_call_parser="hermes", enable_auto_tool_choice=False) as running:
        body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "max_tokens": 1}
        with running.wait_ready().client() as client:
            response = client.post("/v1/chat/completions", json=body)
            assert response.status_code == 400
            assert "switched off" in response.json()["error"]["message"]
            assert client.post("/v1/chat/completions", json=body | {"tool_choice": "none"}).status_code == 200


def allowed(mode: Any, *names: Any) -> Any:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_allowed_tools_are_all_there_are(api: openai.OpenAI) -> None:
    weather, add = f"<tool_call>{BERLIN}</tool_call>", '<tool_call>{"name": "add"}</tool_call>'
    said = ask(api, weather + add, tool_choice=allowed("auto", "add"))
    assert (said.content, said.calls, said.reason) == (weather, [("add", "{}")], "tool_calls")
    assert stream(api, weather + add, tool_choice=allowed("auto", "add")) == said
    said = ask(api, f"[{BERLIN}]", tool_choice=allowed("required", "get_weather"))
    assert [name for name, _ in said.calls] == ["get_weather"]


@pytest.mark.parametrize(
    "choice",
    [
        allowed("auto"),
        allowed("none", "add"),
        allowed(None, "add"),
        allowed("auto", "other"),
        allowed("auto", 5),
        {"type": "allowed_tools"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["add"]}},
    ],
)
def test_what_allows_nothing_is_refused(api: openai.OpenAI, choice: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(api, "x", tool_choice=choice)
    assert caught.value.param == "tool_choice"


@pytest.fixture(scope="module")
def coder() -> Iterator[openai.OpenAI]:
    with (
        running_server({"max_model_len": 4096}, tool_call_parser="qwen3_coder") as running,
        openai.OpenAI(base_url=f"{running.wait_ready().url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.mark.parametrize("cut", ["each", "whole", 1, 2, 3])
def test_arguments_in_tags_have_the_types_of_the_schema(coder: openai.OpenAI, cut: str | int) -> None:
    properties = {"code": {"type": "string"}, "lines": {"type": "integer"}}
    write = tool("write", parameters={"type": "object", "properties": properties})
    arguments = {"code": 'if a < "b":\n    <tag>' + "x" * 200, "lines": 2}
    text = "Done. " + qwen3_coder([{"name": "write", "arguments": arguments}])
    said = ask(coder, text, cut, tools=[write])
    assert (said.content, said.reason) == ("Done. ", "tool_calls")
    ((name, given),) = said.calls
    assert (name, json.loads(given)) == ("write", arguments)
    assert stream(coder, text, cut, tools=[write]) == said
