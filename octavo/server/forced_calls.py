"""Answers that have to be calls: the schema of their text, and how it is read."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from octavo.core.errors import InvalidRequestError
from octavo.core.structured import Constraint, json_schema
from octavo.server.tool_choice import ToolUse
from octavo.server.tools.json_calls import NamedCall, read_json_calls
from octavo.server.tools.parser import Syntax

_DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are no schemas."""
_NAMES = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose values are schemas by name."""


def forced_constraint(tools: ToolUse, is_parallel: bool) -> Constraint | None:
    """For a function that is named the text is its arguments; where any has to be called, a list of calls, of one if
    not ``is_parallel``. None: nothing is forced.

    Raises:
        InvalidRequestError: the parameters of a function are no schema of an object.
    """
    if not tools.is_forced:
        return None
    functions = [tool["function"] for tool in tools.tools]
    if tools.mode == "named":
        return json_schema(_parameters(next(each for each in functions if each["name"] == tools.name)), "tools")
    places = [f"#/$defs/{index}" for index in range(len(functions))]
    call_list: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [_call(each["name"], place) for each, place in zip(functions, places, strict=True)]},
        "$defs": {
            str(index): _moved(_without_id(_parameters(each)), place)
            for index, (each, place) in enumerate(zip(functions, places, strict=True))
        },
    }
    return json_schema(call_list | ({} if is_parallel else {"maxItems": 1}), "tools")


def _call(name: str, arguments: str) -> dict[str, Any]:
    """A call of function ``name``; ``arguments``: where the schema of its arguments is."""
    properties = {"name": {"const": name}, "arguments": {"$ref": arguments}}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def forced_syntax(tools: ToolUse) -> Syntax:
    """How the text of such a constraint is read."""
    return partial(read_json_calls, is_all_calls=True) if tools.name is None else NamedCall(tools.name)


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters") or {}
    kinds = parameters.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise InvalidRequestError(
            f"parameters of function {function['name']!r:.80} must be a JSON schema of type 'object', "
            f"got type {kinds!r:.40}.",
            "tools",
        )
    return {**parameters, "type": "object"}


def _without_id(schema: dict[str, Any]) -> dict[str, Any]:
    """What a schema with a name of its own refers to is looked for in itself alone, and no longer there once moved."""
    return {key: value for key, value in schema.items() if key != "$id"}


def _moved(schema: Any, place: str, has_names: bool = False) -> Any:
    """The schema as part of another one, at ``place``: what it refers to in itself, by its place, is there now.
    ``has_names``: the keys are names of the client's, such as those of properties, and no keywords."""
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if has_names:
        return {name: _moved(each, place) for name, each in schema.items()}
    moved = {key: each if key in _DATA else _moved(each, place, key in _NAMES) for key, each in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        moved["$ref"] = place + reference[1:]
    return moved
