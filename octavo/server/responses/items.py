"""The items of an input to messages as chat takes them."""

from collections.abc import Mapping
from typing import Any

from octavo.core.errors import InvalidRequestError

Message = dict[str, Any]

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""The types of parts that are text, and the field that holds it."""


def as_chat_messages(instructions: str | None, given: Any) -> list[Message]:
    """``instructions`` first; what the assistant thought, said and called between two others' items is one message.

    Raises:
        InvalidRequestError: malformed, or with content that is no text.
    """
    found: list[Message] = []
    if instructions:
        found.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise InvalidRequestError("input must be a text or a non-empty list of items.", "input")
    for index, item in enumerate(given):
        _add(f"input[{index}]", item, found)
    return found


def _add(where: str, item: Any, found: list[Message]) -> None:
    kind = item.get("type", "message") if isinstance(item, Mapping) else None
    match kind:
        case "message":
            _add_message(where, item, found)
        case "reasoning":
            turn = _assistant_turn(found)
            turn["reasoning_content"] = turn.get("reasoning_content", "") + _thinking(where, item)
        case "function_call":
            _assistant_turn(found).setdefault("tool_calls", []).append(_call(where, item))
        case "function_call_output":
            if not isinstance(item.get("call_id"), str):
                raise InvalidRequestError(f"{where}.call_id must be the id of a call.", "input")
            text = _text(f"{where}.output", item.get("output"))
            found.append({"role": "tool", "tool_call_id": item["call_id"], "content": text})
        case _:
            raise InvalidRequestError(f"{where} must be an item of a known type, got {kind!r:.60}.", "input")


def _add_message(where: str, item: Mapping[str, Any], found: list[Message]) -> None:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidRequestError(f"{where}.role must be one of {', '.join(_ROLES)}, got {role!r:.60}.", "input")
    text = _text(f"{where}.content", item.get("content"))
    if role == "assistant":
        turn = _assistant_turn(found)
        turn["content"] += text
    else:
        found.append({"role": _ROLES[role], "content": text})


def _assistant_turn(found: list[Message]) -> Message:
    """The assistant's message that the conversation ends with, a new one if it does not."""
    if not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant", "content": ""})
    return found[-1]


def _call(where: str, item: Mapping[str, Any]) -> dict[str, Any]:
    call_id, name, arguments = item.get("call_id"), item.get("name"), item.get("arguments")
    if not all(isinstance(each, str) for each in (call_id, name, arguments)):
        raise InvalidRequestError(f"{where} must have a call_id, a name, and arguments, all of them texts.", "input")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _thinking(where: str, item: Mapping[str, Any]) -> str:
    """What is not readable (``encrypted_content``), and summaries, are left out."""
    content = item.get("content") or []
    parts = content if isinstance(content, list) else [None]
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequestError(f"{where}.content must be a list of parts with a text.", "input")
    return "".join(str(text) for text in texts)


def _text(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequestError(f"{where} must be a text or a list of parts.", "input")
    return "".join(_part(f"{where}[{number}]", part) for number, part in enumerate(content))


def _part(where: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get(_PARTS[kind]) if isinstance(kind, str) and kind in _PARTS else None
    if not isinstance(text, str):
        raise InvalidRequestError(
            f"{where} must be a part of type 'input_text' with a text, got {kind!r:.60}.", "input"
        )
    return text
