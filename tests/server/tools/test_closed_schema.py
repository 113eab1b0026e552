"""Objects of arguments that are closed, and those that stay as they are."""

from typing import Any

import pytest

from octavo.server.tools.closed_schema import closed

NAMED: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
NO_MORE: dict[str, Any] = {"additionalProperties": False}


def test_objects_that_name_their_properties_hold_these_alone_wherever_they_are() -> None:
    schema: dict[str, Any] = {
        "properties": {"a": NAMED, "b": {"items": NAMED}, "c": {"anyOf": [NAMED, {"type": "null"}]}},
        "required": ["a"],
        "$defs": {"x": NAMED},
    }
    done = NAMED | NO_MORE
    expected = {
        "properties": {"a": done, "b": {"items": done}, "c": {"anyOf": [done, {"type": "null"}]}},
        "required": ["a"],
        "$defs": {"x": done},
    }
    assert closed(schema) == expected | NO_MORE


def test_the_schema_of_the_client_is_not_changed() -> None:
    schema: dict[str, Any] = {"properties": {"a": {"properties": {"b": {}}}}}
    closed(schema)
    assert schema == {"properties": {"a": {"properties": {"b": {}}}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        NAMED | {"additionalProperties": True},
        NAMED | {"additionalProperties": {"type": "string"}},
        NAMED | {"patternProperties": {"^x": {}}},
        NAMED | {"required": ["b"]},
        {"properties": {"a": {"enum": [{"properties": {"b": 1}}]}}, "additionalProperties": {}},
        {"allOf": [NAMED, {"properties": {"b": {}}}]},
        {"properties": {"a": {"allOf": [NAMED, {"$ref": "#/$defs/x"}]}}, "$defs": {"x": NAMED}},
        NAMED | {"anyOf": [{"properties": {"b": {}}}, {"properties": {"c": {}}}]},
        NAMED | {"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"b": {}}}}},
    ],
)
def test_what_says_itself_what_else_there_may_be_stays(schema: dict[str, Any]) -> None:
    """And what is put together from parts, each of which would refuse what the others name."""
    assert closed(schema) == schema
