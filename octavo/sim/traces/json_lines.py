"""Fields of JSON lines, looked at one by one."""

import json
from collections.abc import Mapping
from typing import Any

from octavo.sim.traces.request import BadTraceLineError

MAX_TIME = 1e15
"""Longer than any trace in any unit, and a float."""


def parse_object(text: str) -> Mapping[str, Any]:
    """A line that is a JSON object.

    Raises:
        BadTraceLineError: it is none.
    """
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        raise BadTraceLineError("no JSON") from None
    if not isinstance(fields, dict):
        raise BadTraceLineError("no JSON object")
    return fields


def whole(fields: Mapping[str, Any], name: str) -> int:
    """A field that holds a whole number.

    Raises:
        BadTraceLineError: there is no such field, or it holds something else.
    """
    value = _field(fields, name)
    if type(value) is not int:
        raise BadTraceLineError(f"{name} is {value!r:.40}, no whole number")
    return value


def time(fields: Mapping[str, Any], name: str) -> float:
    """A field that holds a time: a number from 0 on.

    Raises:
        BadTraceLineError: there is no such field, or it holds something else.
    """
    value = _field(fields, name)
    if not (type(value) in {int, float} and 0 <= value <= MAX_TIME):
        raise BadTraceLineError(f"{name} is {value!r:.40}, no time from 0 on")
    return float(value)


def wholes(fields: Mapping[str, Any], name: str) -> list[int]:
    """A field that holds a list of whole numbers.

    Raises:
        BadTraceLineError: there is no such field, or it holds something else.
    """
    value = _field(fields, name)
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise BadTraceLineError(f"{name} is {value!r:.40}, no list of whole numbers")
    return value


def _field(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise BadTraceLineError(f"{name} is missing")
    return fields[name]
