"""What calls in tags look like, where an answer is to be calls or of a form (see qwen3_coder)."""

import json
from collections.abc import Sequence
from typing import Any

from octavo.server.tools.callee import Callee
from octavo.server.tools.plain_values import as_json, is_plain_text, kinds_of
from octavo.server.tools.qwen3_coder import FUNCTION, FUNCTION_END, NAME, PARAMETER, PARAMETER_END
from octavo.server.tools.rules import Argument, arguments_of, joined, refuse
from octavo.structured.lark import exactly, json_text, one_of

NEW_LINE = '"\\n"'
CLOSING = f'"\\n{PARAMETER_END}\\n"'

_UNBOUNDED = frozenset(
    {"type", "anyOf", "oneOf", "title", "description", "default", "examples", "$defs", "definitions"}
)


def qwen3_coder_rules(callees: Sequence[Callee], is_parallel: bool) -> str:
    """See Rules. Line by line, as the template shows it."""
    names = [f"call_{number}" for number in range(len(callees))]
    return "\n".join(
        [
            joined("calls", "call", '"\\n"', is_parallel),
            f'call: mark_0 "\\n" {one_of(*names)} "{FUNCTION_END}\\n" mark_1',
            'text: until "\\n"',
            f'until[suffix="{PARAMETER_END}"]: /(.|\\n)*/',
            *map(_call_rules, names, callees),
        ]
    )


def _call_rules(name: str, callee: Callee) -> str:
    arguments = arguments_of(callee, NAME)
    rules = [f"{name}_{number}: {_argument_rule(callee, argument)}" for number, argument in enumerate(arguments)]
    asked = [f"{name}_{number}" + ("" if each.is_required else "?") for number, each in enumerate(arguments)]
    if not arguments and not callee.is_strict:
        rules, asked = [f'{name}_any: "{PARAMETER}" /[^<>\\n]+/ ">\\n" text'], [f"{name}_any*"]
    return "\n".join([f'{name}: {exactly(f"{FUNCTION}{callee.name}>")} "\\n" {" ".join(asked)}', *rules])


def _argument_rule(callee: Callee, argument: Argument) -> str:
    opening = f"{exactly(f'{PARAMETER}{argument.key}>')} {NEW_LINE}"
    if not callee.is_strict:
        return f"{opening} text"
    schema = _resolved(argument.schema)
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(choices, list) and all(_is_read_as_text(choice, argument.schema) for choice in choices):
        return f"{opening} {one_of(*map(exactly, choices))} {CLOSING}"
    if "string" not in kinds_of(schema):
        return f"{opening} {json_text(argument.schema)} {CLOSING}"
    if not _is_any_text(schema):
        refuse(callee, f"a text with bounds, {argument.key!r:.80}")
    return f"{opening} text"


def _resolved(schema: Any) -> dict[str, Any]:
    """The schema itself, or what it refers to among the definitions beside it."""
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    if not isinstance(reference, str):
        return schema if isinstance(schema, dict) else {}
    _, _, place = reference.partition("#/")
    group, _, name = place.partition("/")
    found = schema.get(group, {}).get(name)
    return found if isinstance(found, dict) else {}


def _is_read_as_text(choice: Any, schema: Any) -> bool:
    """Does the reader of calls take this text, without quotes, for itself?"""
    return (
        isinstance(choice, str)
        and bool(choice)
        and (is_plain_text(schema) or as_json(choice, schema) == json.dumps(choice, ensure_ascii=False))
    )


def _is_any_text(schema: Any) -> bool:
    """May a value be any text at all, whatever else it may be?"""
    if not isinstance(schema, dict) or not _UNBOUNDED.issuperset(schema):
        return False
    branches = [each for key in ("anyOf", "oneOf") for each in schema.get(key, ())]
    return all(map(_is_any_text, branches)) and not kinds_of(schema) & {"object", "array"}
