"""One JSON value (RFC 8259), checked while it comes and given on piece by piece as it was written.

The one liberty: a control character inside a string, which JSON forbids and models write (a newline, mostly), is given
on as its escape, so that what is given on parses.
"""

import json
import re
from collections.abc import Callable

from octavo.server.tools.feed import BLANKS, EndOfTextError, Reading, TextFeed

Emit = Callable[[str], None]

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_LITERAL = re.compile(r"[-+.0-9A-Za-z]*")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_SHORT_ESCAPES = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")
_CLOSERS = {"{": "}", "[": "]"}


class NotJsonError(Exception):
    """The text cannot be what was to be read, whatever follows."""


def read_value(feed: TextFeed, emit: Emit) -> Reading[None]:
    """Reads one value; blanks before it count as part of it.

    Raises:
        NotJsonError: it is none. The character that shows it is unread.
        EndOfTextError: the text ended inside it; what there was has been given on.
    """
    closers: list[str] = []  # of the objects and lists that are open: a stack, so that depth costs no recursion
    while True:
        yield from _begin_value(feed, emit, closers)
        while closers:
            yield from skip_blanks(feed, emit)
            char = yield from feed.peek()
            if char == closers[-1]:
                closers.pop()
                emit(feed.take())
            elif char == ",":
                emit(feed.take())
                if closers[-1] == "}":
                    yield from _read_key(feed, emit)
                break  # another value is to come
            else:
                raise NotJsonError
        else:
            return


def _begin_value(feed: TextFeed, emit: Emit, closers: list[str]) -> Reading[None]:
    """Reads a whole string, literal or empty container, opening the containers around it."""
    while True:
        yield from skip_blanks(feed, emit)
        char = yield from feed.peek()
        if char == '"':
            yield from read_string(feed, emit)
            return
        if char not in _CLOSERS:
            yield from _read_literal(feed, emit)
            return
        emit(feed.take())
        yield from skip_blanks(feed, emit)
        if (yield from feed.peek()) == _CLOSERS[char]:
            emit(feed.take())
            return
        closers.append(_CLOSERS[char])
        if char == "{":
            yield from _read_key(feed, emit)


def _read_key(feed: TextFeed, emit: Emit) -> Reading[None]:
    yield from skip_blanks(feed, emit)
    yield from read_string(feed, emit)
    yield from skip_blanks(feed, emit)
    yield from expect(feed, ":")
    emit(":")


def read_string(feed: TextFeed, emit: Emit) -> Reading[None]:
    """Reads a string with its quotes. Raises as ``read_value`` does."""
    yield from expect(feed, '"')
    emit('"')
    while True:
        plain = feed.run(_PLAIN)
        if plain:
            emit(plain)
        char = yield from feed.peek()
        if char == '"':
            emit(feed.take())
            return
        if char == "\\":
            emit((yield from _read_escape(feed)))
        elif char < " ":
            emit(json.dumps(feed.take())[1:-1])


def _read_escape(feed: TextFeed) -> Reading[str]:
    """A whole escape: what is given on never ends inside one."""
    feed.take()
    kind = yield from feed.peek()
    if kind in _SHORT_ESCAPES:
        return "\\" + feed.take()
    yield from expect(feed, "u")
    digits = ""
    for _ in range(4):
        if (yield from feed.peek()) not in _HEX:
            raise NotJsonError
        digits += feed.take()
    return "\\u" + digits


def _read_literal(feed: TextFeed, emit: Emit) -> Reading[None]:
    text = ""
    try:
        while True:
            text += feed.run(_LITERAL)
            char = yield from feed.peek()
            if not _LITERAL.fullmatch(char):
                break
    except EndOfTextError:
        emit(text)
        raise
    if not _SCALAR.fullmatch(text):
        raise NotJsonError
    emit(text)


def skip_blanks(feed: TextFeed, emit: Emit) -> Reading[None]:
    while True:
        blanks = feed.run(BLANKS)
        if blanks:
            emit(blanks)
        if not BLANKS.fullmatch((yield from feed.peek())):
            return


def expect(feed: TextFeed, char: str) -> Reading[None]:
    """Reads this one character.

    Raises:
        NotJsonError: another one comes.
    """
    if (yield from feed.peek()) != char:
        raise NotJsonError
    feed.take()
