"""One value in Python's notation, as far as JSON can say it, checked while it comes and given on as JSON."""

import json
import re

from octavo.server.tools.feed import BLANKS, Reading, TextFeed
from octavo.server.tools.json_value import Emit, NotJsonError, expect

MAX_DEPTH = 64

_PLAIN = re.compile(r"""[^"'\\\n]*""")
_LITERAL = re.compile(r"[-+.0-9A-Za-z_]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
"""Also those of JSON, which models write in spite of all."""
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_NUM_DIGITS = {"x": 2, "u": 4, "U": 8}
_CLOSERS = {"[": "]", "(": ")", "{": "}"}
_HEX = frozenset("0123456789abcdefABCDEF")


def read_python_value(feed: TextFeed, emit: Emit, depth: int = 0) -> Reading[None]:
    """A text, number, True, False, None, list, tuple, or dict with texts as keys.

    Raises:
        NotJsonError: it is none. What was given on by then is the beginning of a value.
        EndOfTextError: the text ended inside it.
    """
    char = yield from feed.peek()
    if char in "\"'":
        yield from _read_text(feed, emit)
    elif char in _CLOSERS:
        if depth == MAX_DEPTH:
            raise NotJsonError
        yield from _read_parts(feed, emit, depth)
    else:
        text = yield from feed.run_all(_LITERAL)
        if text not in _WORDS and not _NUMBER.fullmatch(text):
            raise NotJsonError
        emit(_WORDS.get(text, text))


def _read_parts(feed: TextFeed, emit: Emit, depth: int) -> Reading[None]:
    opening = feed.take()
    closing, is_dict, is_first = _CLOSERS[opening], opening == "{", True
    emit("{" if is_dict else "[")
    while True:
        yield from feed.run_all(BLANKS)
        if (yield from feed.match(closing)):
            break
        if not is_first:
            yield from expect(feed, ",")
            yield from feed.run_all(BLANKS)
            if (yield from feed.match(closing)):
                break
            emit(", ")
        is_first = False
        if is_dict:
            yield from _read_text(feed, emit)
            yield from feed.run_all(BLANKS)
            yield from expect(feed, ":")
            emit(": ")
            yield from feed.run_all(BLANKS)
        yield from read_python_value(feed, emit, depth + 1)
    emit("}" if is_dict else "]")


def _read_text(feed: TextFeed, emit: Emit) -> Reading[None]:
    quote = yield from feed.peek()
    if quote not in "\"'":
        raise NotJsonError
    feed.take()
    emit('"')
    while True:
        plain = feed.run(_PLAIN)
        if plain:
            emit(_escaped(plain))
        char = yield from feed.peek()
        if char == "\n":
            raise NotJsonError
        feed.take()
        if char == quote:
            break
        emit(_escaped((yield from _read_escape(feed)) if char == "\\" else char))
    emit('"')


def _read_escape(feed: TextFeed) -> Reading[str]:
    """What stands behind a backslash, as Python takes it."""
    kind = yield from feed.peek()
    feed.take()
    if kind == "\n":
        return ""
    if kind not in _NUM_DIGITS:
        return _ESCAPES.get(kind, "\\" + kind)
    digits = ""
    for _ in range(_NUM_DIGITS[kind]):
        if (yield from feed.peek()) not in _HEX:
            raise NotJsonError
        digits += feed.take()
    if int(digits, 16) > 0x10FFFF:
        raise NotJsonError
    return chr(int(digits, 16))


def _escaped(text: str) -> str:
    """As part of a JSON text. Half a surrogate pair, which no UTF-8 can hold, stays an escape."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        return json.dumps(text)[1:-1]
    return json.dumps(text, ensure_ascii=False)[1:-1]
