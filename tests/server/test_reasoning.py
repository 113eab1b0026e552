"""Thinking told apart from the answer, streamed and not, with tool calls after it."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.dialect import reasoning_parser_of, tool_parser_of
from octavo.server.reasoning import REASONING_PARSERS, ReasoningSplitter
from octavo.server.reply import Reply, ReplyFormat
from tests.support.fake_engine import cut_randomly, typing
from tests.support.fake_server import running_server

QWEN = REASONING_PARSERS["qwen3"]


def split(text: str, is_open: bool, pieces: list[str] | None = None) -> tuple[str, str]:
    splitter = ReasoningSplitter(QWEN, is_open)
    found = [splitter.feed(piece) for piece in ([text] if pieces is None else pieces)] + [splitter.finish()]
    return "".join(each.reasoning for each in found), "".join(each.answer for each in found)


@pytest.mark.parametrize(
    ("text", "is_open", "expected"),
    [
        ("<think>a < b</think>\n\nSo.", False, ("a < b", "\n\nSo.")),
        ("\n <think></think>So.", False, ("", "So.")),
        ("So. <think>no</think>", False, ("", "So. <think>no</think>")),
        ("  So.", False, ("", "  So.")),
        ("<thi", False, ("", "<thi")),
        ("  ", False, ("", "  ")),
        ("", False, ("", "")),
        ("<think>never closed </thi", False, ("never closed </thi", "")),
        ("on</think>So.</think>", True, ("on", "So.</think>")),
        ("<think>twice</think>So.", True, ("twice", "So.")),
        ("never closed", True, ("never closed", "")),
    ],
)
def test_what_is_thinking(text: str, is_open: bool, expected: tuple[str, str]) -> None:
    assert split(text, is_open) == split(text, is_open, list(text)) == expected


@given(
    text=st.lists(st.sampled_from(["<think>", "</think>", "<thi", "</", " ", "\n", "漢", "ab"]), max_size=8).map(
        "".join
    ),
    is_open=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_chunking_changes_nothing(text: str, is_open: bool, seed: int) -> None:
    whole = split(text, is_open)
    assert split(text, is_open, list(text)) == whole
    if text:
        assert split(text, is_open, cut_randomly(text, seed)) == whole


@pytest.mark.parametrize(
    ("name", "prompt", "is_open"),
    [
        ("qwen3", "assistant\n<think>\n", True),
        ("qwen3", "assistant\n", False),
        ("qwen3", "assistant\n<think>\n\n</think>\n\n", False),
        ("deepseek_r1", "<｜Assistant｜>", True),
        ("deepseek_r1", "<｜Assistant｜></think>", False),
        ("mistral", "[/INST][THINK]", True),
    ],
)
def test_where_an_answer_begins(name: str, prompt: str, is_open: bool) -> None:
    assert REASONING_PARSERS[name].open_after(prompt) is is_open


@pytest.mark.parametrize(
    ("name", "begun", "is_open"),
    [
        ("qwen3", "", False),
        ("qwen3", "<think>\nWell", True),
        ("qwen3", "<think></think>So", False),
        ("deepseek_r1", "Well", True),
        ("deepseek_r1", "Well</think>So", False),
    ],
)
def test_where_a_begun_answer_stands(name: str, begun: str, is_open: bool) -> None:
    assert REASONING_PARSERS[name].open_within(begun) is is_open


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ('<tool_call>{\\"name\\": <function-name>, \\"arguments\\": <args>}</tool_call>', "hermes", None),
        ("<tool_call>\n<function=name>\n<parameter=a>", "qwen3_coder", None),
        ("<tool_call>\n<function=name>", None, None),
        (
            "[func_name1(params_name1=params_value1, params_name2=...), func_name2(params)]",
            "pythonic",
            None,
        ),
        ("{{ '[TOOL_CALLS]' }} '{\"name\": \"' + name + '\", \"arguments\": '", "mistral", None),
        ('<|start_header_id|> \'{"name": "\' ... \'"parameters": \'', "llama3_json", None),
        ("<|start_header_id|>{{ message.role }}", None, None),
        ("{{ '<think>\n' }} content.split('</think>')", None, "qwen3"),
        ("content.split('</think>')", None, "deepseek_r1"),
        ("[THINK][/THINK]", None, "mistral"),
        ("", None, None),
    ],
)
def test_what_a_template_shows(template: str, tools: str | None, reasoning: str | None) -> None:
    assert (tool_parser_of(template), reasoning_parser_of(template)) == (tools, reasoning)


def test_an_answer_without_anything_to_look_for_is_its_text() -> None:
    reply = Reply(ReplyFormat())
    assert [reply.add(text, None).as_dict() for text in ("<think>", "")] == [{"content": "<think>"}, {}]
    assert reply.finish_reason("stop") == "stop"


TOOL: Any = {"type": "function", "function": {"name": "f"}}
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


@pytest.fixture(scope="module")
def thinking() -> Iterator[httpx.Client]:
    with (
        running_server(tool_call_parser="hermes", reasoning_parser="qwen3") as running,
        running.wait_ready().client() as client,
    ):
        yield client


def message_of(client: httpx.Client, text: str, **fields: Any) -> tuple[dict[str, Any], str]:
    """Message and finish reason, the same streamed and not."""
    asked = {"messages": [{"role": "user", "content": typing(text, "each")}]} | fields
    response = client.post("/v1/chat/completions", json=asked)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    message = choice["message"]
    streamed: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    with client.stream("POST", "/v1/chat/completions", json=asked | {"stream": True}) as lines:
        for line in lines.iter_lines():
            if line.startswith("data: {"):
                (news,) = httpx.Response(200, text=line.removeprefix("data: ")).json()["choices"]
                for key in ("content", "reasoning_content"):
                    streamed[key] += news["delta"].get(key) or ""
                streamed["tool_calls"] += news["delta"].get("tool_calls", [])
                reason = news["finish_reason"]
    assert reason == choice["finish_reason"]
    for key in ("content", "reasoning_content"):
        assert streamed[key] == (message.get(key) or "")
    assert len(streamed["tool_calls"]) == len(message.get("tool_calls", []))
    return message, reason


def test_thinking_and_answer(thinking: httpx.Client) -> None:
    message, reason = message_of(thinking, "<think>\nWell, 2.\n</think>\n\nTwo.")
    assert (message["reasoning_content"], message["content"]) == ("\nWell, 2.\n", "\n\nTwo.")
    assert reason == "stop"
    message, _ = message_of(thinking, "Two.")
    assert message["content"] == "Two."
    assert "reasoning_content" not in message


def test_thinking_that_is_never_closed(thinking: httpx.Client) -> None:
    message, reason = message_of(thinking, "<think>Well, 2. Or 3", max_tokens=15)
    assert (message["reasoning_content"], message["content"], reason) == ("Well, 2.", None, "length")
    message, reason = message_of(thinking, "<think>Well", tools=[TOOL])
    assert (message["reasoning_content"], message["content"], reason) == ("Well", None, "stop")


def test_calls_after_thinking(thinking: httpx.Client) -> None:
    """And none inside it."""
    message, reason = message_of(thinking, f"<think>I could {CALL}</think>\n\n{CALL}", tools=[TOOL])
    assert message["reasoning_content"] == f"I could {CALL}"
    assert (message["content"], len(message["tool_calls"]), reason) == (None, 1, "tool_calls")
    message, _ = message_of(thinking, f"<think>a</think>Now: {CALL}", tools=[TOOL])
    assert (message["content"], len(message["tool_calls"])) == ("Now: ", 1)
