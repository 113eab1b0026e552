"""Numbers in headers and query strings, by one rule: plain digits, and where a fraction makes sense one of those.

No sign, exponent, underscore, infinity or digits of other scripts, all of which Python would take. Spaces and tabs
around the value of a header are not part of it (RFC 9110).
"""

import re

from starlette.requests import Request

from octavo.core.errors import InvalidRequestError

_DIGITS = r"[0-9]{1,15}"
_WHOLE = re.compile(rf"{_DIGITS}\Z")
_NUMBER = re.compile(rf"{_DIGITS}(\.{_DIGITS})?\Z")


def plain_number(text: str) -> float | None:
    """None: it is not written so."""
    return float(text) if _NUMBER.match(text) else None


def plain_whole_number(text: str) -> int | None:
    """None: it is not written so."""
    return int(text) if _WHOLE.match(text) else None


def number_in_header(request: Request, name: str, unit: str) -> float | None:
    """The number that a header holds; None: there is no such header.

    Raises:
        InvalidRequestError: it holds something else, or comes more than once.
    """
    values = request.headers.getlist(name)
    if not values:
        return None
    if len(values) > 1:
        raise InvalidRequestError(f"{name} comes more than once; send one.", name)
    text = values[0].strip(" \t")
    number = plain_number(text)
    if number is None:
        raise InvalidRequestError(f"{name} must be a number of {unit} in plain digits, got {text[:80]!r}.", name)
    return number
