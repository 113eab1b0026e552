"""The tool calls of earlier turns in a conversation."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.core.errors import InvalidRequestError


def with_parsed_arguments(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Checked messages as chat templates read them: the arguments of tool calls as objects, not as texts of JSON.

    An assistant's empty list of calls, which clients send back as they got it, is left out.

    Raises:
        InvalidRequestError: calls of another form than OpenAI's.
    """
    return [_parsed(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _parsed(where: str, message: Mapping[str, Any]) -> Mapping[str, Any]:
    calls = message.get("tool_calls")
    if calls is None:
        return message
    if not isinstance(calls, list):
        raise InvalidRequestError(f"{where}.tool_calls must be a list.", "messages")
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    parsed = [_call(f"{where}.tool_calls[{index}]", call) for index, call in enumerate(calls)]
    return rest | {"tool_calls": parsed} if parsed else rest


def _call(where: str, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise InvalidRequestError(f"{where} must be an object with type 'function' and a function.", "messages")
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise InvalidRequestError(f"{where}.function.name must be a non-empty text.", "messages")
    arguments = _arguments(f"{where}.function.arguments", function.get("arguments"))
    return {**call, "function": {**function, "arguments": arguments}}


def _arguments(where: str, arguments: Any) -> dict[str, Any]:
    """An object, or one as a text; nothing at all means no arguments."""
    try:
        is_text = arguments is None or isinstance(arguments, str)
        value: Any = json.loads(arguments or "{}") if is_text else arguments
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{where} is not valid JSON: {error}"[:300], "messages") from None
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{where} must be a JSON object, got {value!r:.40}.", "messages")
    return dict(value)
