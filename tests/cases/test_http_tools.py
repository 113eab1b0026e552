"""B42 from outside: `octavo serve` on models that type tool calls, markers as text and as control tokens."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.cases.test_text import chain
from tests.support.fake_engine import MODEL, cut_randomly
from tests.support.fake_server import running_real_server
from tests.support.models import edit_json, script_model
from tests.support.tokenizer_files import CHAT_TEMPLATE, TokenizerOptions

TOOL: Any = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
ARGUMENTS = {"q": "漢字 </tool_call> 😀", "n": [5, {}]}
CALL = json.dumps({"name": "find", "arguments": ARGUMENTS}, ensure_ascii=False)
TEXT = f"Look: <tool_call>\n{CALL}\n</tool_call>"
TEMPLATE = CHAT_TEMPLATE + '{# <tool_call>{"name": ..., "arguments": ...}</tool_call> #}'
"""By what its comment says the server finds out how the model calls."""
OPTIONS = TokenizerOptions(chat_template=TEMPLATE)


@contextmanager
def serving(folder: Path) -> Iterator[openai.OpenAI]:
    with running_real_server(folder, "--num-blocks", "64", "--block-size", "4") as server:
        server.wait_ready()
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            yield client


def chat(client: openai.OpenAI, messages: Any = None, **more: Any) -> Any:
    """The only choice. The prompt must not end with a piece of the script, so it ends with a control token."""
    asked: Any = messages or [{"role": "user", "content": "hello"}]
    body = {"add_generation_prompt": False} | more
    return client.chat.completions.create(model=MODEL, messages=asked, extra_body=body).choices[0]


def check_calls(client: openai.OpenAI, content: str | None, **more: Any) -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    fields: Any = {
        "model": MODEL,
        "messages": messages,
        "tools": [TOOL],
        "extra_body": {"add_generation_prompt": False},
    } | more
    (choice,) = client.chat.completions.create(**fields).choices
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert (choice.message.content, choice.finish_reason) == (content, "tool_calls")
    assert json.loads(call.function.arguments) == ARGUMENTS
    with client.chat.completions.stream(**fields) as events:
        streamed = events.get_final_completion().choices[0]
    (same,) = streamed.message.tool_calls or []
    assert (streamed.message.content or None, streamed.finish_reason) == (content, "tool_calls")
    assert (same.function.name, same.function.arguments) == ("find", call.function.arguments)


@pytest.mark.parametrize("cut", ["whole", "each", 1], ids=str)
def test_b42_whatever_the_tokens(cut: str | int, tmp_path: Path) -> None:
    pieces = [TEXT] if cut == "whole" else list(TEXT) if cut == "each" else cut_randomly(TEXT, int(cut))
    pieces[-1] += "\n"  # a piece that came before would have to be joined with a next one
    with serving(script_model(tmp_path, chain([*pieces]), options=OPTIONS).path) as client:
        check_calls(client, "Look: ")


def test_b42_markers_that_are_control_tokens(tmp_path: Path) -> None:
    """They are left out of the text of other requests."""
    opening, closing = "<tool_call>", "</tool_call>"
    script = script_model(tmp_path, [opening, "\n" + CALL, closing], options=OPTIONS)
    added = json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"]
    for text in (opening, closing):
        token_id = script.tokenizer.token_to_id(text)
        added.append(added[0] | {"id": token_id, "content": text})
    edit_json(tmp_path / "tokenizer.json", {"added_tokens": added})
    with serving(script.path) as client:
        check_calls(client, None)
        assert chat(client).message.content == "\n" + CALL
        check_calls(client, None, response_format={"type": "json_object"})


def test_beside_tools_an_answer_of_a_form_is_still_possible(tmp_path: Path) -> None:
    script = script_model(tmp_path, chain(['{"q": [', '"<tool_call>"', "]}"]), options=OPTIONS)
    with serving(script.path) as client:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "required": ["q"]}}}
        said = chat(client, tools=[TOOL], response_format=form)
        assert (said.message.content, said.message.tool_calls) == ('{"q": ["<tool_call>"]}', None)


def test_a_template_that_opens_the_thinking(tmp_path: Path) -> None:
    """Seen at the end of the prompt. And where a message is continued, in what there is of it."""
    template = TEMPLATE + "{% if open is defined and open %}<think>\n{% endif %}{# </think> #}"
    pieces = ["Hm, 2.", "</think>", "Two."]
    script = script_model(tmp_path, pieces, options=TokenizerOptions(chat_template=template))
    with serving(script.path) as client:
        thought = chat(client, chat_template_kwargs={"open": True}).message
        assert (thought.reasoning_content, thought.content) == ("Hm, 2.", "Two.")
        assert chat(client).message.content == "Hm, 2.</think>Two."
        begun = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "<think>So. "}]
        thought = chat(client, begun, continue_final_message=True).message
        assert (thought.reasoning_content, thought.content) == ("Hm, 2.", "Two.")


FORM: Any = {"choice": ["yes!"]}


def whole_and_streamed(client: openai.OpenAI, **more: Any) -> Any:
    """The message, the same both ways."""
    body = {"add_generation_prompt": False, "chat_template_kwargs": {"open": True}, "temperature": 0.0} | more
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "extra_body": body}
    message: Any = client.chat.completions.create(**asked).choices[0].message
    thought = content = arguments = ""
    for chunk in client.chat.completions.create(**asked, stream=True):
        delta: Any = chunk.choices[0].delta
        thought += getattr(delta, "reasoning_content", None) or ""
        content += delta.content or ""
        arguments += "".join(call.function.arguments for call in delta.tool_calls or [])
    assert (thought, content) == (message.reasoning_content, message.content or "")
    assert arguments == "".join(call.function.arguments for call in message.tool_calls or [])
    return message


def test_a_form_begins_after_the_thinking_and_so_does_a_call_that_has_to_be_made(tmp_path: Path) -> None:
    """Inside it anything may be written; after it nothing but the form, whatever the model would rather say. Where the
    template has ended it, the form begins at once."""
    template = TEMPLATE + "{% if open %}<think>\n{% elif open is defined %}<think></think>{% endif %}{# </think> #}"
    pieces = ['Is it {"a": 5}', "? ", "</think>", "So: ", "no"]
    script = script_model(tmp_path, pieces, options=TokenizerOptions(chat_template=template))
    with serving(script.path) as client:
        message = whole_and_streamed(client, structured_outputs=FORM)
        assert (message.reasoning_content, message.content) == ('Is it {"a": 5}? ', "yes!")
        message = whole_and_streamed(client, tools=[TOOL], tool_choice="required", max_tokens=40)
        assert message.reasoning_content == 'Is it {"a": 5}? '
        closed = chat(client, structured_outputs=FORM, chat_template_kwargs={"open": False}).message
        assert not hasattr(closed, "reasoning_content")
        assert closed.content == "yes!"


FORECAST: Any = {
    "type": "function",
    "function": {
        "name": "forecast",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Zürich", "東京", 'a"b']},
                "days": {"type": "array", "items": {"$ref": "#/$defs/day"}, "maxItems": 2},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
            "$defs": {"day": {"type": "integer", "minimum": 0, "maximum": 6}},
        },
    },
}
STOP: Any = {
    "type": "function",
    "function": {"name": "stop", "parameters": {"type": "object", "additionalProperties": False}},
}


def check_forecast(arguments: str) -> None:
    read = json.loads(arguments)
    assert set(read) == {"city", "days"}
    assert read["city"] in ("Zürich", "東京", 'a"b')
    assert all(day in range(7) for day in read["days"])


def test_calls_that_have_to_be_made(rand: Path) -> None:
    """A model that knows nothing of them: what it says always parses, and streamed it is the same."""
    named = {"type": "function", "function": {"name": "forecast"}}
    with serving(rand) as client:
        for seed in range(6):
            for choice in ("required", named):
                fields: Any = {
                    "model": MODEL,
                    "messages": [{"role": "user", "content": "hello"}],
                    "tools": [FORECAST, STOP],
                    "tool_choice": choice,
                    "parallel_tool_calls": False,
                    "temperature": 1,
                    "seed": seed,
                    "max_tokens": 200,
                }
                (said,) = client.chat.completions.create(**fields).choices
                with client.chat.completions.stream(**fields) as events:
                    streamed = events.get_final_completion().choices[0]
                assert said.finish_reason == streamed.finish_reason == "tool_calls"
                assert not said.message.content
                (call,) = said.message.tool_calls or []
                (same,) = streamed.message.tool_calls or []
                assert call.type == "function"
                assert (call.function.name, call.function.arguments) == (same.function.name, same.function.arguments)
                if call.function.name == "forecast":
                    check_forecast(call.function.arguments)
                else:
                    assert choice == "required"
                    assert json.loads(call.function.arguments) == {}
