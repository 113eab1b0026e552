"""The turns of a conversation in Anthropic's form, blocks of content, to messages as chat takes them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from octavo.core.errors import InvalidRequestError

Message = dict[str, Any]


def as_chat_messages(system: Any, messages: Sequence[Any]) -> list[Message]:
    """The system prompt first; results of tools, which come inside a user's turn, as messages of their own.

    Raises:
        InvalidRequestError: malformed, or with content that is no text.
    """
    found: list[Message] = []
    if system:
        found.append({"role": "system", "content": _texts("system", system, "system")})
    for index, message in enumerate(messages):
        found += _turn(f"messages[{index}]", message)
    return found


def _turn(where: str, message: Any) -> Iterator[Message]:
    role = message.get("role") if isinstance(message, Mapping) else None
    if role not in ("user", "assistant", "system"):
        raise InvalidRequestError(
            f"{where} must be an object with role 'user' or 'assistant', and content.", "messages"
        )
    content = message.get("content")
    if isinstance(content, str):
        yield {"role": role, "content": content}
    elif not isinstance(content, list):
        raise InvalidRequestError(f"{where}.content must be a text or a list of blocks.", "messages")
    elif role == "assistant":
        yield _assistant(where, content)
    else:
        yield from _user(where, role, content)


def _user(where: str, role: str, blocks: Sequence[Any]) -> Iterator[Message]:
    """In the blocks' order; neighbouring texts are one message."""
    parts: list[dict[str, Any]] = []
    for number, block in enumerate(blocks):
        place = f"{where}.content[{number}]"
        if isinstance(block, Mapping) and block.get("type") == "tool_result":
            if parts:
                yield {"role": role, "content": parts}
                parts = []
            yield _tool_result(place, block)
        else:
            parts.append(_text(place, block, "messages"))
    if parts or not blocks:
        yield {"role": role, "content": parts or ""}


def _tool_result(where: str, block: Mapping[str, Any]) -> Message:
    if not isinstance(block.get("tool_use_id"), str):
        raise InvalidRequestError(f"{where}.tool_use_id must be the id of a call.", "messages")
    content = _texts(f"{where}.content", block.get("content") or "", "messages")
    mark = block.get("cache_control")
    message = {"role": "tool", "tool_call_id": block["tool_use_id"], "content": content}
    return message | ({} if mark is None else {"cache_control": mark})


def _assistant(where: str, blocks: Sequence[Any]) -> Message:
    """Thinking that is not readable (``redacted_thinking``) is left out."""
    message: Message = {"role": "assistant", "content": []}
    for number, block in enumerate(blocks):
        place = f"{where}.content[{number}]"
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "tool_use":
            message.setdefault("tool_calls", []).append(_call(place, block))
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            message["reasoning_content"] = message.get("reasoning_content", "") + block["thinking"]
        elif kind != "redacted_thinking":
            message["content"].append(_text(place, block, "messages"))
    message["content"] = message["content"] or ""
    return message


def _call(where: str, block: Mapping[str, Any]) -> dict[str, Any]:
    call_id, name, given = block.get("id"), block.get("name"), block.get("input")
    if not isinstance(call_id, str) or not isinstance(name, str) or not isinstance(given, dict):
        raise InvalidRequestError(f"{where} must have an id, a name, and an input, an object.", "messages")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": given}}


def _texts(where: str, content: Any, param: str) -> Any:
    """A text, or a list of blocks of text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequestError(f"{where} must be a text or a list of blocks of text.", param)
    return [_text(f"{where}[{number}]", block, param) for number, block in enumerate(content)] or ""


def _text(where: str, block: Any, param: str) -> dict[str, Any]:
    """As a part of a chat message, with its mark for the cache."""
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind != "text" or not isinstance(block.get("text"), str):
        raise InvalidRequestError(f"{where} must be a block of text, got type {kind!r:.40}.", param)
    mark = block.get("cache_control")
    return {"type": "text", "text": block["text"]} | ({} if mark is None else {"cache_control": mark})
