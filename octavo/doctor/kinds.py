"""What kind of thing differs between prompts, by how it is written."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[AaPp]\.?[Mm]\.?)?(?:\s?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2}))?"
_DATE = (
    rf"(?:{_DAY},?\s+)?(?:\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{1,2}}[-/.]\d{{1,2}}[-/.]\d{{2,4}}|"
    rf"{_MONTH}\s+\d{{1,2}}(?:st|nd|rd|th)?(?:,?\s+\d{{4}})?|\d{{1,2}}(?:st|nd|rd|th|\.)?\s+{_MONTH}(?:,?\s+\d{{4}})?)"
)

KINDS = {
    "a UUID": r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b",
    "a date with a time": rf"\b{_DATE}(?:T|,?\s+(?:at\s+)?){_CLOCK}",
    "a time": rf"\b{_CLOCK}",
    "a date": rf"\b(?:{_DATE}|{_DAY})\b",
    "an e-mail address": r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    "an id": r"\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[A-Za-z0-9](?:[\w-]{5,})\b",
    "a number": r"[-+]?\b\d+(?:[.,]\d+)*\b",
    "a name": r"\b[A-Z][\w'\u2019-]+(?:\s+[A-Z][\w'\u2019-]+){0,2}\b",
}
"""By what they are called; the first that fits counts."""

TEXT = "text"
"""What none of them is."""

_PATTERNS = {kind: re.compile(pattern) for kind, pattern in KINDS.items()}
_MAX_FIELD = 80
MAJORITY = 0.6
"""Of the prompts: as many have to have it."""


class Difference(NamedTuple):
    """What is between what two prompts have in common, with some characters ``before`` and ``after``."""

    before: str
    piece: str
    after: str


def kind_of(differences: Sequence[Difference]) -> tuple[str, list[str]]:
    """The kind that most have, and each one's field of that kind; ``TEXT`` and the pieces where there is none."""
    fields = {kind: [_field(pattern, each) for each in differences] for kind, pattern in _PATTERNS.items()}
    counts = Counter({kind: sum(field is not None for field in found) for kind, found in fields.items()})
    for kind in _PATTERNS:
        if counts[kind] >= MAJORITY * len(differences):
            return kind, [field for field in fields[kind] if field is not None]
    return TEXT, [each.piece for each in differences]


def _field(pattern: re.Pattern[str], difference: Difference) -> str | None:
    """What matches and has all of the piece in it, but for spaces and marks."""
    text = difference.before + difference.piece + difference.after
    piece = difference.piece.strip(" \t\n.,;:!?\"'()[]<>")
    start = len(difference.before) + (difference.piece.find(piece) if piece else 0)
    end = start + max(1, len(piece))
    for match in pattern.finditer(text):
        if match.start() <= start and end <= match.end() and len(match[0]) <= _MAX_FIELD:
            return match[0]
    return None
