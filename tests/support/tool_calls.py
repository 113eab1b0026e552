"""Calls written in each language that models use, and what a parser finds in a text."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from octavo.server.tools.events import Arguments, CallBegin, CallEnd, Content, Event
from octavo.server.tools.parser import Syntax, ToolParser

Call = Mapping[str, Any]
"""``name`` and ``arguments``."""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def hermes(calls: Iterable[Call]) -> str:
    return "\n".join(f"<tool_call>\n{_json(call)}\n</tool_call>" for call in calls)


def llama3(calls: Iterable[Call]) -> str:
    return "; ".join(_json({"name": call["name"], "parameters": call["arguments"]}) for call in calls)


def mistral_list(calls: Iterable[Call]) -> str:
    return "[TOOL_CALLS]" + _json(list(calls))


def mistral_named(calls: Iterable[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{call['name']}[ARGS]{_json(call['arguments'])}" for call in calls)


def plain_json(calls: Iterable[Call]) -> str:
    return _json(list(calls))


def fenced_json(calls: Iterable[Call]) -> str:
    return f"```json\n{json.dumps(list(calls), indent=2)}\n```"


def _plain(value: Any) -> str:
    """As a chat template writes a value without saying of what type it is."""
    return value if isinstance(value, str) else str(value) if isinstance(value, bool) else _json(value)


def qwen3_coder(calls: Iterable[Call]) -> str:
    return "\n".join(
        f"<tool_call>\n<function={call['name']}>\n"
        + "".join(f"<parameter={key}>\n{_plain(each)}\n</parameter>\n" for key, each in call["arguments"].items())
        + "</function>\n</tool_call>"
        for call in calls
    )


def pythonic(calls: Iterable[Call]) -> str:
    def written(call: Call) -> str:
        return f"{call['name']}({', '.join(f'{key}={each!r}' for key, each in call['arguments'].items())})"

    return f"[{', '.join(map(written, calls))}]"


WRITERS: dict[str, tuple[str, Callable[[Iterable[Call]], str]]] = {
    "hermes": ("hermes", hermes),
    "llama3": ("llama3_json", llama3),
    "mistral list": ("mistral", mistral_list),
    "mistral named": ("mistral", mistral_named),
    "json": ("json", plain_json),
    "fenced json": ("json", fenced_json),
    "qwen3_coder": ("qwen3_coder", qwen3_coder),
    "pythonic": ("pythonic", pythonic),
    "llama 4": ("llama4_pythonic", lambda calls: f"<|python_start|>{pythonic(calls)}<|python_end|>"),
}
"""name: the parser that reads it, and how it is written."""


def parse(syntax: Syntax, names: Iterable[str], pieces: Sequence[str], is_cut: bool = False) -> list[Event]:
    """The events, those of one kind joined as they are for the whole text."""
    parser = ToolParser(syntax, names if isinstance(names, Mapping) else frozenset(names))
    found: list[Event] = []
    for event in [event for piece in pieces for event in parser.feed(piece)] + parser.finish(is_cut):
        match event, found[-1] if found else None:
            case (Content() as new, Content() as last) | (Arguments() as new, Arguments() as last):
                last.text += new.text
            case _:
                found.append(event)
    return found


def complete_calls(events: Sequence[Event]) -> list[dict[str, Any]]:
    """The calls, arguments parsed; only for events of which every call is complete."""
    calls: list[dict[str, Any]] = []
    texts: list[str] = []
    for event in events:
        match event:
            case CallBegin():
                calls.append({"name": event.name})
                texts.append("")
            case Arguments():
                texts[-1] += event.text
            case CallEnd():
                assert event.is_complete
    return [call | {"arguments": json.loads(text)} for call, text in zip(calls, texts, strict=True)]


def content(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Content))
