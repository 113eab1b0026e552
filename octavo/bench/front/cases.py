"""What is asked of the server: each endpoint plainly, and each feature that has work to do a token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.server.tools.call import MAX_HELD

PROMPT = "The quick brown fox jumps over the lazy dog while the engine answers at once. " * 3
CHAT = {"messages": [{"role": "user", "content": PROMPT}]}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "note", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}},
    }
]
PARSERS = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}


@dataclass(frozen=True, slots=True)
class Case:
    """``fields``: of the request's body, beside model and length. ``settings``: of the server. ``opening``: what the
    engine answers before its words."""

    name: str
    path: str
    fields: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    opening: tuple[str, ...] = ()


def _completion(name: str, **fields: Any) -> Case:
    return Case(name, "/v1/completions", {"prompt": PROMPT, **fields})


def _chat(name: str, opening: tuple[str, ...] = (), settings: Mapping[str, Any] | None = None, **fields: Any) -> Case:
    return Case(name, "/v1/chat/completions", {**CHAT, **fields}, settings or {}, opening)


CASES = {
    case.name: case
    for case in (
        _completion("completions"),
        _completion("completions, logprobs 5", logprobs=5),
        _completion("completions, stop strings", stop=["never", "comes"]),
        _completion("completions, usage, token ids", stream_options={"include_usage": True}, return_token_ids=True),
        _chat("chat"),
        _chat("chat, top_logprobs 5", logprobs=True, top_logprobs=5),
        _chat("chat, stop strings", stop=["never", "comes"]),
        _chat("chat, tools not called", (), PARSERS, tools=TOOLS),
        _chat(
            "chat, a long tool call",
            ("<tool_call>", '{"name": "note", ', '"arguments": {"text": "' + MAX_HELD * "-"),
            PARSERS,
            tools=TOOLS,
        ),
        _chat("chat, thinking", ("<think>",), PARSERS),
    )
}


def by_server(cases: Sequence[Case]) -> list[list[Case]]:
    """Those that one server and one engine can answer, together."""
    groups: dict[object, list[Case]] = {}
    for case in cases:
        groups.setdefault((tuple(case.settings.items()), case.opening), []).append(case)
    return list(groups.values())
