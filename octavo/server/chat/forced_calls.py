"""Answers that have to be calls: the schema of their text, and how it is read."""

from functools import partial
from typing import Any

from octavo.core.structured import Constraint, json_schema
from octavo.server.chat.tool_choice import ToolUse
from octavo.server.tools.callee import call_schema, callee_of
from octavo.server.tools.json_calls import NamedCall, read_json_calls
from octavo.server.tools.parser import Syntax


def forced_constraint(tools: ToolUse, is_parallel: bool) -> Constraint | None:
    """For a function that is named the text is its arguments; where any has to be called, a list of calls, of one if
    not ``is_parallel``. None: nothing is forced.

    Raises:
        InvalidRequestError: the parameters of a function are no schema of an object.
    """
    if not tools.is_forced:
        return None
    functions = [tool["function"] for tool in tools.tools if tools.name in (None, tool["function"]["name"])]
    callees = [callee_of(each, is_strict=True) for each in functions]
    if tools.mode == "named":
        return json_schema(callees[0].parameters, "tools")
    call, definitions = call_schema(callees)
    call_list: dict[str, Any] = {"type": "array", "minItems": 1, "items": call} | definitions
    return json_schema(call_list | ({} if is_parallel else {"maxItems": 1}), "tools")


def forced_syntax(tools: ToolUse) -> Syntax:
    """How the text of such a constraint is read."""
    return partial(read_json_calls, is_all_calls=True) if tools.name is None else NamedCall(tools.name)
