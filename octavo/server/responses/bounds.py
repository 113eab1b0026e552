"""What the fields of a request of the Responses API may hold, for the OpenAPI document."""

from typing import Any

from octavo.server.chat.tool_choice import MAX_NAME_CHARACTERS
from octavo.server.limits import ServerLimits
from octavo.server.responses.request import FORMATS

Schema = dict[str, Any]

_NULL: Schema = {"type": "null"}
_FALSE: Schema = {"const": False}


def response_bounds(limits: ServerLimits) -> dict[str, Schema]:
    items = {"type": "array", "minItems": 1, "maxItems": limits.messages, "items": {"type": "object"}}
    name = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARACTERS}
    tool = _object({"type": {"const": "function"}, "name": name})
    named = _object({"type": {"const": "function"}, "name": name})
    allowed = _object(
        {
            "type": {"const": "allowed_tools"},
            "mode": {"enum": ["auto", "required"]},
            "tools": {"type": "array", "minItems": 1, "items": named},
        }
    )
    form = _object({"type": {"enum": list(FORMATS)}})
    return {
        "input": {"anyOf": [{"type": "string"}, items]},
        "max_output_tokens": {"type": "integer", "minimum": 1, "maximum": 2**63 - 1},
        "tools": {"type": "array", "items": tool, "maxItems": limits.tools},
        "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, named, allowed]},
        "text": {"type": "object", "properties": {"format": {"anyOf": [form, _NULL]}}},
        "reasoning": {"type": "object"},
        "metadata": {"type": "object"},
        "truncation": {"const": "disabled"},
        # Known, so that they are refused by name where they hold something.
        "previous_response_id": _NULL,
        "conversation": _NULL,
        "prompt": _NULL,
        "background": _FALSE,
        "store": _FALSE,
        "top_logprobs": {"const": 0},
    }


def _object(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}
