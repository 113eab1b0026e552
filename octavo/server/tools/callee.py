"""A function that may be called, and the schema of a call to it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from octavo.core.errors import InvalidRequestError
from octavo.server.tools.closed_schema import closed

ANY_OBJECT = {"type": "object"}

_DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are no schemas."""
_NAMES = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose values are schemas by name."""


class Callee(NamedTuple):
    """``parameters``: a schema of objects. ``is_strict``: arguments have to follow it to the letter."""

    name: str
    parameters: dict[str, Any]
    is_strict: bool

    @property
    def arguments(self) -> dict[str, Any]:
        """What a call's arguments have to be."""
        return self.parameters if self.is_strict else ANY_OBJECT


def callee_of(function: Mapping[str, Any], *, is_strict: bool) -> Callee:
    """
    Raises:
        InvalidRequestError: the parameters are no schema of an object.
    """
    parameters = function.get("parameters") or {}
    kinds = parameters.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise InvalidRequestError(
            f"parameters of function {function['name']!r:.80} must be a JSON schema of type 'object', "
            f"got type {kinds!r:.40}.",
            "tools",
        )
    return Callee(function["name"], closed({**parameters, "type": "object"}), is_strict)


def call_schema(callees: Sequence[Callee], arguments_key: str = "arguments") -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of an object that is a call to one of them, and the ``$defs`` that the whole schema needs."""
    places = [f"#/$defs/{index}" for index in range(len(callees))]
    calls = [_call(each.name, arguments_key, place) for each, place in zip(callees, places, strict=True)]
    definitions = {
        str(index): _moved(_without_id(each.arguments), place)
        for index, (each, place) in enumerate(zip(callees, places, strict=True))
    }
    return {"anyOf": calls}, {"$defs": definitions}


def _call(name: str, arguments_key: str, place: str) -> dict[str, Any]:
    """A call of function ``name``; ``place``: where the schema of its arguments is."""
    properties = {"name": {"const": name}, arguments_key: {"$ref": place}}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


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
