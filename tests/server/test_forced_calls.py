"""tool_choice "required" and by name: what the text is constrained to, and how it is read."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from llguidance import LLMatcher, LLTokenizer

from octavo.core.errors import InvalidRequestError
from octavo.core.structured import Constraint
from octavo.server.chat.forced_calls import forced_constraint
from octavo.server.chat.tool_choice import ToolUse
from tests.server.test_tools import TOOLS, ask, stream, tool
from tests.support.fake_engine import MODEL
from tests.support.fake_server import ServerProcess, running_server

PARAMETERS = {
    "type": "object",
    "properties": {
        "a": {"$ref": "#/$defs/list"},
        "default": {"$ref": "#/definitions/digit"},  # names of properties that are keywords elsewhere
        "enum": {"const": {"$ref": "#/$defs/list"}},
        "self": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"list": {"type": "array", "items": {"$ref": "#/definitions/digit"}}},
    "definitions": {"digit": {"type": "integer", "minimum": 0, "maximum": 9}},
}
USE = [tool("f", parameters=PARAMETERS), {"type": "function", "function": {"name": "g"}}]


def constraint(name: str | None = None, is_parallel: bool = True) -> Constraint:
    found = forced_constraint(ToolUse("named" if name else "required", USE, name), is_parallel)
    assert found is not None
    return found


def fits(found: Constraint, text: str) -> bool:
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(found.text))
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.tokenize_str(text)
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


F = '{"name": "f", "arguments": {"a": [1, 2], "default": 3, "self": {"a": []}}}'
G = '{"name": "g", "arguments": {"anything": {}}}'


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        (f"[{F}]", True),
        (f"[{G}, {F}, {F}]", True),
        ('[{"name": "f", "arguments": {"a": [], "enum": {"$ref": "#/$defs/list"}}}]', True),
        ('[{"name": "f", "arguments": {"a": [], "self": null}}]', True),
        ("[]", False),
        (F, False),
        ('[{"name": "h", "arguments": {}}]', False),
        ('[{"name": "f", "arguments": {}}]', False),
        ('[{"name": "f", "arguments": {"a": [10]}}]', False),
        ('[{"name": "f", "arguments": {"a": [], "self": {"a": 1}}}]', False),
        ('[{"name": "f", "arguments": {"a": [], "b": 1}}]', False),
        ('[{"name": "g"}]', False),
    ],
)
def test_a_list_of_calls(text: str, is_right: bool) -> None:
    assert fits(constraint(), text) is is_right


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize(
    "parameters",
    [
        {"$id": "https://example.com/f", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"const": 1}}},
        {"properties": {"a": {"$ref": "#x"}}, "$defs": {"x": {"$anchor": "x", "const": 1}}},
        {"type": ["object", "null"], "properties": {"a": {"const": 1}}},
    ],
)
def test_schemas_with_names_and_more_types_than_objects(parameters: dict[str, Any], is_named: bool) -> None:
    parameters = {"type": "object", "required": ["a"], **parameters}
    use = ToolUse("named" if is_named else "required", [tool("f", parameters=parameters)], "f" if is_named else None)
    found = forced_constraint(use, True)
    assert found is not None
    shown = "{}" if is_named else '[{"name": "f", "arguments": {}}]'
    assert fits(found, shown.replace("{}", '{"a": 1}'))
    assert not any(fits(found, shown.replace("{}", wrong)) for wrong in ('{"a": 2}', "{}", "null"))


def test_one_call_where_more_are_not_wanted() -> None:
    assert fits(constraint(is_parallel=False), f"[{F}]")
    assert not fits(constraint(is_parallel=False), f"[{F}, {G}]")


def test_the_arguments_of_one_function() -> None:
    assert fits(constraint("f"), '{"a": [5], "self": {"a": []}}')
    assert not fits(constraint("f"), '{"a": ["5"]}')
    assert fits(constraint("g"), "{}")
    assert not fits(constraint("g"), "[]")


def test_nothing_is_forced_otherwise() -> None:
    assert forced_constraint(ToolUse("auto", USE), True) is forced_constraint(ToolUse(), True) is None


def test_parameters_that_are_no_object() -> None:
    use = [tool("f", parameters={"type": "array"})]
    for choice in (ToolUse("required", use), ToolUse("named", use, "f")):
        with pytest.raises(InvalidRequestError, match="must be a JSON schema of type 'object', got type 'array'"):
            forced_constraint(choice, True)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """It may think first, and would read any JSON as calls."""
    parsers = {"reasoning_parser": "qwen3", "tool_call_parser": "json"}
    with running_server({"max_model_len": 4096}, **parsers) as running:
        yield running.wait_ready()


@pytest.fixture
def api(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


ADD = {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize("cut", ["each", "whole", 1, 2, 3])
def test_how_it_is_read(api: openai.OpenAI, cut: str | int) -> None:
    calls = [{"name": "add", "arguments": {"s": '"}]', "n": [1]}}, {"name": "get_weather", "arguments": {}}]
    said = ask(api, json.dumps(calls), cut, tool_choice="required")
    assert said.content is None
    assert said.calls == [(call["name"], json.dumps(call["arguments"])) for call in calls]
    assert said.reason == "tool_calls"
    assert stream(api, json.dumps(calls), cut, tool_choice="required") == said
    thought = f"<think>[{{}}]</think>{json.dumps(calls)}"
    assert ask(api, thought, cut, tool_choice="required") == stream(api, thought, cut, tool_choice="required") == said
    said = ask(api, ' {"a": 1}\n', cut, tool_choice=ADD)
    assert (said.content, said.calls, said.reason) == (None, [("add", '{"a": 1}')], "tool_calls")
    assert stream(api, ' {"a": 1}\n', cut, tool_choice=ADD) == said


FORM: Any = {"type": "json_object"}
BAD_FORM: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 5}}}
BAD_TOOL = tool("f", parameters={"properties": {"a": {"type": 5}}}, strict=True)


def test_an_answer_of_a_form_is_content_and_beside_tools_it_may_be_calls(api: openai.OpenAI) -> None:
    """Though this model would be thinking from the first token on. The first thing in the text decides."""
    call, text = '{"name": "add", "arguments": {}}', '{"a": [{"name": "add", "arguments": {}}]}'
    without: dict[str, Any] = {"tools": openai.omit}
    none: dict[str, Any] = {"tool_choice": "none"}
    for written, fields in ((call, without), (call, none), (text, {}), (text, without), (f"[{text}]", {})):
        said = ask(api, written, response_format=FORM, **fields)
        assert (said.content, said.calls, said.reason) == (written, [], "stop")
        assert stream(api, written, response_format=FORM, **fields) == said
    for written in (call, f"<think>Hm.</think>{call}"):
        said = ask(api, written, response_format=FORM)
        assert (said.content, said.calls, said.reason) == (None, [("add", "{}")], "tool_calls")
        assert stream(api, written, response_format=FORM) == said


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": BAD_FORM}, "response_format"),
        ({"extra_body": {"structured_outputs": {"regex": "["}}}, "structured_outputs"),
        ({"response_format": FORM, "tools": [BAD_TOOL]}, "tools"),
        ({"response_format": FORM, "tools": [tool("f", parameters={"type": "array"})]}, "tools"),
    ],
    ids=lambda value: repr(value)[:80],
)
def test_which_of_a_form_and_tools_cannot_be_had(api: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    messages: Any = [{"role": "user", "content": "x"}]
    with pytest.raises(openai.BadRequestError) as caught:
        api.chat.completions.create(model=MODEL, messages=messages, **{"tools": TOOLS} | fields)
    assert caught.value.param == param


def test_calls_that_are_cut(api: openai.OpenAI) -> None:
    """DECISION D11: the part so far, and no other text."""
    text = '[{"name": "add", "arguments": {"a": 1}}]'
    for length in range(1, len(text)):
        said = ask(api, text, max_tokens=length, tool_choice="required")
        assert said.content is None
        assert said.reason == ("tool_calls" if length >= text.index("}}") + 2 else "length")
        assert len(said.calls) == (length >= text.index("add") + 4)
        assert stream(api, text, max_tokens=length, tool_choice="required") == said
    said = ask(api, '{"a": 1}', max_tokens=4, tool_choice=ADD)
    assert (said.content, said.calls, said.reason) == (None, [("add", '{"a"')], "length")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [tool("f", parameters={"type": "array"})]}, "tools"),
        ({"tools": [tool("f", parameters={"type": "object", "properties": {"a": {"type": "nope"}}})]}, "tools"),
        ({"tools": [tool("f", parameters={"type": "object", "properties": {"a": {"$ref": "#/none"}}})]}, "tools"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": TOOLS, "extra_body": {"structured_outputs": {"regex": "a"}}}, "structured_outputs"),
    ],
    ids=lambda value: repr(value)[:80],
)
def test_what_cannot_be_forced(api: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    messages: Any = [{"role": "user", "content": "x"}]
    with pytest.raises(openai.BadRequestError) as caught:
        api.chat.completions.create(model=MODEL, messages=messages, tool_choice="required", **fields)
    assert caught.value.param == param
