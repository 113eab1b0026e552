"""Grammars of calls: what a text of calls looks like, in Lark's form, as the parser beside it reads them.

Each gives a rule ``calls``. ``mark_0`` and so on are the markers of the dialect, which may be control tokens.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from octavo.core.errors import InvalidRequestError
from octavo.server.tools.callee import Callee, call_schema
from octavo.structured.lark import WHITE_SPACE, json_text

Rules = Callable[[Sequence[Callee], bool], str]
"""Of calls to these functions, of one call where the flag is false.

Raises:
    InvalidRequestError: what is asked of the arguments cannot be kept to in this way of writing.
"""

BLANK = f"BLANK: /{WHITE_SPACE}/"


def joined(name: str, part: str, between: str, is_parallel: bool) -> str:
    """A rule of this name: one or more parts."""
    return f"{name}: {part} ({between} {part})*" if is_parallel else f"{name}: {part}"


def call_object(name: str, callees: Sequence[Callee], arguments_key: str = "arguments") -> str:
    """A rule of this name: a call as a JSON object."""
    call, definitions = call_schema(callees, arguments_key)
    return f"{name}: {json_text(call | definitions)}"


def call_list(name: str, callees: Sequence[Callee], is_parallel: bool) -> str:
    """A rule of this name: a JSON list of calls."""
    call, definitions = call_schema(callees)
    bound = {} if is_parallel else {"maxItems": 1}
    return f"{name}: {json_text({'type': 'array', 'minItems': 1, 'items': call} | definitions | bound)}"


class Argument(NamedTuple):
    """``schema``: with what it may refer to; any value, where the function is not strict."""

    key: str
    schema: Any
    is_required: bool


def arguments_of(callee: Callee, key: re.Pattern[str]) -> list[Argument]:
    """The arguments one by one, in the schema's order; none where it does not name them. ``key``: what a name can be.

    Raises:
        InvalidRequestError: a strict schema that is more than properties of such names.
    """
    schema = callee.parameters
    properties = schema.get("properties") or {}
    if callee.is_strict:
        _check_plain(callee, properties, key)
    if not isinstance(properties, dict):
        return []
    required = (schema.get("required") or ()) if callee.is_strict else ()
    return [
        Argument(name, _with_definitions(each, schema), name in required)
        for name, each in properties.items()
        if key.fullmatch(name)
    ]


def _check_plain(callee: Callee, properties: Any, key: re.Pattern[str]) -> None:
    known = {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "title", "description"}
    is_closed = callee.parameters.get("additionalProperties", False) is False
    if not isinstance(properties, dict) or not is_closed or not known.issuperset(callee.parameters):
        refuse(callee, "parameters that are more than a list of properties")
    unwritable = [name for name in properties if not key.fullmatch(name)]
    if unwritable:
        refuse(callee, f"a parameter named {unwritable[0]!r:.80}")


def refuse(callee: Callee, what: str) -> NoReturn:
    """
    Raises:
        InvalidRequestError: always.
    """
    raise InvalidRequestError(
        f"function {callee.name!r:.80} is strict and has {what}, which the way in which this model writes calls cannot "
        "keep to beside another form of answer; leave strict out, or force a call by tool_choice.",
        "tools",
    )


def _with_definitions(schema: Any, whole: dict[str, Any]) -> Any:
    """The schema of a part by itself, with what it may refer to."""
    kept = {key: whole[key] for key in ("$defs", "definitions") if key in whole}
    return schema | kept if isinstance(schema, dict) else schema
