"""What a misspelt name of a setting was probably meant to be."""

import re
from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, whatever stands between its words, or none."""
    plain = {_plain(each): each for each in sorted(known)}
    found = get_close_matches(_plain(name), plain, n=1)
    return plain[found[0]] if found else None


def _plain(name: str) -> str:
    return re.sub(r"[-_. ]", "", name).lower()
