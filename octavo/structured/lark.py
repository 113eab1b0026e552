"""Parts of a grammar in the words of the library that enforces it (llguidance's Lark)."""

import json
from typing import Any

WHITE_SPACE = r"[ \t]|\r?\n[ \t]{0,64}"
"""What may stand between the parts of a JSON text: bounded, or a model that likes blanks never comes to an end."""

_JSON_OPTIONS = {"whitespace_pattern": WHITE_SPACE, "whitespace_flexible": True, "lenient": False}


def json_text(schema: dict[str, Any]) -> str:
    """A JSON text that follows the schema."""
    return "%json " + json.dumps(schema | {"x-guidance": _JSON_OPTIONS}, ensure_ascii=False)


def escaped(text: str) -> str:
    """A regular expression for exactly this text, on one line, without a slash."""
    return "".join(
        character if character.isalnum() and character.isascii() else f"\\x{{{ord(character):X}}}" for character in text
    )


def exactly(text: str) -> str:
    """This text, which is not empty."""
    return f"/{escaped(text)}/"


def one_of(*parts: str) -> str:
    return f"({' | '.join(parts)})"
