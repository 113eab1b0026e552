"""A constraint in the words of the library that enforces it (llguidance's Lark)."""

import json
import re
from typing import Any

from octavo.core.errors import InvalidRequestError
from octavo.core.structured import Constraint

OPTIONS = '%llguidance {"no_forcing": true}\n'
"""Any token may come whose text fits. The library would rather pick the one way to spell a text that can only go on so,
and ask the tokenizer for it: a call into Python, from the thread that fills masks beside a step."""

WHITE_SPACE = r"[ \t]|\r?\n[ \t]{0,64}"
"""What may stand between the parts of a JSON text: bounded, or a model that likes blanks never comes to an end."""

_JSON_OPTIONS = {"whitespace_pattern": WHITE_SPACE, "whitespace_flexible": True, "lenient": False}

_OWN_OPTIONS = re.compile(r"%llguidance|x-guidance")


def grammar_text(constraint: Constraint) -> str:
    """
    Raises:
        InvalidRequestError: it can be told without compiling that there is no such grammar.
    """
    match constraint.kind:
        case "json_schema":
            return OPTIONS + "start: " + _json(json.loads(constraint.text))
        case "choice":
            return OPTIONS + _choice(json.loads(constraint.text))
        case "regex":
            return OPTIONS + f"start: /{_regex(constraint.text)}/"
        case "grammar":
            return OPTIONS + _grammar(constraint.text)


def _json(schema: dict[str, Any]) -> str:
    return "%json " + json.dumps(schema | {"x-guidance": _JSON_OPTIONS}, ensure_ascii=False)


def _choice(texts: list[str]) -> str:
    """One token of the grammar for all texts: as one token each, a few thousand are more than can be followed. No
    token is empty, so the empty text is none of them."""
    written = "|".join(_escaped(text) for text in dict.fromkeys(texts) if text)
    return "start: " + " | ".join(([f"/{written}/"] if written else []) + (['""'] if "" in texts else []))


def _escaped(text: str) -> str:
    """A regular expression for exactly this text, on one line, without a slash."""
    return "".join(
        character if character.isalnum() and character.isascii() else f"\\x{{{ord(character):X}}}" for character in text
    )


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
