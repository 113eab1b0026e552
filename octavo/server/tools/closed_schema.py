"""Objects that hold the properties that their schema names, and no others."""

from typing import Any

_SAID = frozenset({
    "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "minProperties",
    "dependentSchemas",
})  # fmt: skip
"""Where one of these is, the schema says itself what others there may be."""

_ELSEWHERE = frozenset({"$ref", "$dynamicRef", "anyOf", "oneOf", "if", "not"})
_OF_OBJECTS = frozenset({"properties", "required"}) | _SAID

_NAMED = ("properties", "$defs", "definitions")
_SINGLE = ("items", "additionalProperties")
_LISTED = ("anyOf", "oneOf", "prefixItems")


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with ``additionalProperties`` false where it names properties and leaves open which others there may
    be, as JSON Schema has it: what fits it then fits the schema as it was. One that puts an object together from
    several parts stays as it is, since each part would refuse what the others name.

    A small model goes on with properties that nobody asked for, and clients strip ``additionalProperties`` from what
    their users wrote.
    """
    return schema if _is_composed(schema) else dict(_closed(schema))


def _is_composed(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_composed, value))
    if not isinstance(value, dict):
        return False
    elsewhere = _ELSEWHERE.intersection(value)
    if "allOf" in value or len(elsewhere) > 1 or (elsewhere and not _OF_OBJECTS.isdisjoint(value)):
        return True
    return any(map(_is_composed, value.values()))


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for key in _NAMED:
        if isinstance(found.get(key), dict):
            found[key] = {name: _closed(each) for name, each in found[key].items()}
    for key in _SINGLE:
        if key in found:
            found[key] = _closed(found[key])
    for key in _LISTED:
        if isinstance(found.get(key), list):
            found[key] = [_closed(each) for each in found[key]]
    return found | {"additionalProperties": False} if _is_open(schema) else found


def _is_open(schema: dict[str, Any]) -> bool:
    named, required = schema.get("properties"), schema.get("required")
    if not isinstance(named, dict) or not named or not _SAID.isdisjoint(schema):
        return False
    return required is None or (isinstance(required, list) and named.keys() >= {str(name) for name in required})
