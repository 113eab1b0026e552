"""Values that a model wrote as plain text, as the JSON that the function's schema asks for."""

import json
from collections.abc import Mapping
from typing import Any

_KINDS: Mapping[str, str] = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "dict": "object",
    "list": "array",
    "tuple": "array",
}
"""Python's names, which tools of old data sets have."""

_WORDS: Mapping[str, Any] = {"True": True, "False": False, "None": None}
"""As templates write them that know of no JSON."""

_ALL_KINDS: frozenset[str] = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})


def is_plain_text(schema: Any) -> bool:
    """Is the value a text, whatever it looks like?"""
    return kinds_of(schema) == {"string"}


def as_json(text: str, schema: Any) -> str:
    """The value that ``text`` stands for. One that is none of the schema's types stays a text."""
    kinds = kinds_of(schema)
    stripped = text.strip()
    try:
        value = _WORDS[stripped] if stripped in _WORDS else json.loads(stripped, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    if isinstance(value, str) or _kind(value) not in kinds:
        return json.dumps(text, ensure_ascii=False)
    return stripped if stripped not in _WORDS else json.dumps(value)


def kinds_of(schema: Any) -> frozenset[str]:
    """The types that a value may have; all, where the schema does not say so plainly."""
    if not isinstance(schema, Mapping):
        return frozenset({"string"})
    named = schema.get("type")
    if isinstance(named, str | list):
        names = [named] if isinstance(named, str) else named
        found = frozenset(_KINDS.get(str(name), str(name)) for name in names) & _ALL_KINDS
        return (found | {"integer"} if "number" in found else found) or _ALL_KINDS
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        return frozenset(map(_kind, values))
    branches = [each for name in ("anyOf", "oneOf") if isinstance(schema.get(name), list) for each in schema[name]]
    return frozenset[str]().union(*map(kinds_of, branches)) if branches else _ALL_KINDS


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for of, kind in ((int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, of):
            return kind
    return "object"


def _refuse(word: str) -> None:
    raise ValueError(word)
