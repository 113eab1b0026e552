"""What the fields of a request in Anthropic's form may hold, for the OpenAPI document."""

from typing import Any

from octavo.server.chat.tool_choice import MAX_NAME_CHARACTERS
from octavo.server.limits import ServerLimits

Schema = dict[str, Any]


def prompt_bounds(limits: ServerLimits) -> dict[str, Schema]:
    """Of what makes the prompt."""
    blocks = {"type": "array", "items": _object({"type": {"type": "string"}})}
    content = {"anyOf": [{"type": "string"}, blocks]}
    message = _object({"role": {"enum": ["user", "assistant", "system"]}, "content": content})
    name = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARACTERS}
    tool = _object({"name": name, "input_schema": {"type": "object"}})
    return {
        "messages": {"type": "array", "minItems": 1, "maxItems": limits.messages, "items": message},
        "system": content,
        "tools": {"type": "array", "items": tool, "maxItems": limits.tools},
        "tool_choice": _kind("auto", "any", "tool", "none"),
        "thinking": _kind("enabled", "adaptive", "disabled"),
    }


def message_bounds(limits: ServerLimits) -> dict[str, Schema]:
    """Of a whole request."""
    sampling = limits.sampling
    text = {"type": "string", "minLength": 1, "maxLength": sampling.stop_characters}
    form = _object({"type": {"const": "json_schema"}, "schema": {"type": "object"}})
    return prompt_bounds(limits) | {
        "stop_sequences": {"type": "array", "items": text, "maxItems": sampling.stops},
        "output_config": {"type": "object", "properties": {"format": {"anyOf": [form, {"type": "null"}]}}},
        # Known, so that they are refused by name where they hold something.
        "container": {"type": "null"},
        "mcp_servers": {"type": "array", "maxItems": 0},
    }


def _kind(*names: str) -> Schema:
    return _object({"type": {"enum": list(names)}})


def _object(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}
