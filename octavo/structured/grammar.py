"""A constraint in the words of the library that enforces it (llguidance's Lark)."""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from octavo.core.errors import InvalidRequestError
from octavo.core.structured import Constraint
from octavo.structured.lark import escaped, exactly, json_text, one_of

OPTIONS = '%llguidance {"no_forcing": true}\n'
"""Any token may come whose text fits. The library would rather pick the one way to spell a text that can only go on so,
and ask the tokenizer for it: a call into Python, from the thread that fills masks beside a step."""

_OWN_OPTIONS = re.compile(r"%llguidance|x-guidance")


ControlIds = Callable[[str], Iterable[int]]
"""The control tokens that are spelled so."""


def grammar_text(constraint: Constraint, control_ids: ControlIds) -> str:
    """
    Raises:
        InvalidRequestError: it can be told without compiling that there is no such grammar.
    """
    if constraint.kind == "form_or_calls":
        return OPTIONS + _form_or_calls(json.loads(constraint.text), control_ids)
    return OPTIONS + _rules(constraint)


def form_of(constraint: Constraint) -> Constraint:
    """The constraint itself, or what it is where the text has no calls."""
    return Constraint(**json.loads(constraint.text)["form"]) if constraint.kind == "form_or_calls" else constraint


def marks_of(constraint: Constraint) -> Iterable[str]:
    """The texts in it that may be control tokens."""
    return json.loads(constraint.text)["marks"] if constraint.kind == "form_or_calls" else ()


def _form_or_calls(parts: dict[str, Any], control_ids: ControlIds) -> str:
    """The form stays a grammar of its own, so that names of its rules are not those of the calls."""
    form = _rules(Constraint(**parts["form"]))
    marks = [f"mark_{number}: {_mark(text, control_ids)}" for number, text in enumerate(parts["marks"])]
    return "\n".join(["start: form | calls", f"form: %lark {{\n{form}\n}}", *marks, parts["calls"]])


def _mark(text: str, control_ids: ControlIds) -> str:
    ids = sorted(control_ids(text))
    return one_of(*(f"<[{token_id}]>" for token_id in ids)) if ids else exactly(text)


def _rules(constraint: Constraint) -> str:
    match constraint.kind:
        case "json_schema":
            return "start: " + json_text(json.loads(constraint.text))
        case "choice":
            return _choice(json.loads(constraint.text))
        case "regex":
            return f"start: /{_regex(constraint.text)}/"
        case _:
            return _grammar(constraint.text)


def _choice(texts: list[str]) -> str:
    """One token of the grammar for all texts: as one token each, a few thousand are more than can be followed. No
    token is empty, so the empty text is none of them."""
    written = "|".join(escaped(text) for text in dict.fromkeys(texts) if text)
    return "start: " + " | ".join(([f"/{written}/"] if written else []) + (['""'] if "" in texts else []))


def _regex(pattern: str) -> str:
    from llguidance import regex_to_lark

    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise InvalidRequestError("the regular expression ends with a single backslash")
    lark: str = regex_to_lark(pattern, use_ascii="d")  # digits are 0 to 9
    return lark.replace("\r", "\\r").replace("\n", "\\n")


def _grammar(text: str) -> str:
    if _OWN_OPTIONS.search(text):
        raise InvalidRequestError("a grammar cannot set options (%llguidance, x-guidance)")
    if "::=" not in text:
        return text
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        lark: str = gbnf_to_lark(text)
    except RecursionError:
        raise InvalidRequestError("the grammar nests too deeply") from None
    except Exception as error:
        raise InvalidRequestError(f"the grammar cannot be read: {error}"[:300]) from error
    return lark
