"""The common part of Rust's regular expressions, as ``Expressions``: enough to tell what masks have in common.

Whatever is not surely understood is left alone (UnknownSyntaxError): the library alone decides what a pattern means.
"""

import re
from collections.abc import Iterator

from octavo.structured.byte_expressions import EMPTY, Expressions, Node

ALL_ASCII = (1 << 128) - 1
_DIGITS = sum(1 << byte for byte in b"0123456789")
_NEW_LINE = 1 << 10
_ESCAPES = {"n": 1 << 10, "r": 1 << 13, "t": 1 << 9, "d": _DIGITS, "D": ALL_ASCII & ~_DIGITS}
_PUNCTUATION = frozenset("\\.+*?()|[]{}^$-/\"',:;#&~@!%=_` ")
"""What a backslash makes a plain character of. Not < and >: with one these are ends of words."""
_QUANTIFIER = re.compile(r"([*+?])|\{([0-9]{1,6})(?:(,)([0-9]{1,6})?)?\}")
_COUNTS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_SPECIAL = frozenset("\\.+*?()|[]{}^$")
MAX_NESTING = 20


class UnknownSyntaxError(Exception):
    """The pattern holds something that is not understood here."""


def read_regex(pattern: str, made: Expressions) -> Node:
    """The texts of ``pattern`` in UTF-8.

    Raises:
        UnknownSyntaxError: some of it is not understood.
    """
    reader = _Reader(pattern.removeprefix("^"), made)
    node = reader.alternatives(0)
    if reader.rest not in ("", "$"):
        raise UnknownSyntaxError
    return node


class _Reader:
    def __init__(self, text: str, made: Expressions) -> None:
        self._text = text
        self._at = 0
        self._made = made

    @property
    def rest(self) -> str:
        return self._text[self._at :]

    def _next(self) -> str:
        """The next character, which stays unread; empty at the end."""
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        self._at += 1
        return self._text[self._at - 1 : self._at]

    def alternatives(self, depth: int) -> Node:
        if depth > MAX_NESTING:
            raise UnknownSyntaxError
        nodes = [self._sequence(depth)]
        while self._next() == "|":
            self._take()
            nodes.append(self._sequence(depth))
        return self._made.either(nodes)

    def _sequence(self, depth: int) -> Node:
        nodes = []
        while self._next() not in ("", "|", ")") and self.rest != "$":
            nodes.append(self._repeated(self._atom(depth)))
        sequence = EMPTY
        for node in reversed(nodes):
            sequence = self._made.then(node, sequence)
        return sequence

    def _repeated(self, node: Node) -> Node:
        found = _QUANTIFIER.match(self._text, self._at)
        if found is None:
            return node
        self._at = found.end()
        if _QUANTIFIER.match(self._text, self._at):  # a lazy one, among others
            raise UnknownSyntaxError
        sign, least, comma, most = found.groups()
        if sign:
            return self._made.repeat(node, *_COUNTS[sign])
        bound = int(least) if comma is None else None if most is None else int(most)
        if bound is not None and bound < int(least):
            raise UnknownSyntaxError
        return self._made.repeat(node, int(least), bound)

    def _atom(self, depth: int) -> Node:
        char = self._take()
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._class()
        if char == ".":
            return self._characters(ALL_ASCII & ~_NEW_LINE, beyond_ascii=True)
        if char == "\\":
            kind = self._take()
            return self._characters(_escape(kind), beyond_ascii=kind == "D")
        if char in _SPECIAL or "\ud800" <= char <= "\udfff":
            raise UnknownSyntaxError
        sequence = EMPTY
        for byte in reversed(char.encode()):
            sequence = self._made.then(self._made.one_of(1 << byte), sequence)
        return sequence

    def _group(self, depth: int) -> Node:
        if self._next() == "?":
            self._take()
            if self._take() != ":":
                raise UnknownSyntaxError
        node = self.alternatives(depth + 1)
        if self._take() != ")":
            raise UnknownSyntaxError
        return node

    def _class(self) -> Node:
        is_negated = self._next() == "^"
        if is_negated:
            self._take()
        mask = 0
        while self._next() != "]" or not mask:
            mask |= self._class_item()
        self._take()
        if not is_negated:
            return self._made.one_of(mask)
        return self._characters(ALL_ASCII & ~mask, beyond_ascii=True)

    def _class_item(self) -> int:
        """A character, a range or a kind of characters."""
        first = self._class_character()
        if self._next() != "-" or self._text[self._at + 1 : self._at + 2] in ("", "]"):
            return first
        self._take()
        last = self._class_character()
        if first.bit_count() != 1 or last.bit_count() != 1 or last < first:
            raise UnknownSyntaxError
        return 2 * last - first  # all bits from the one to the other

    def _class_character(self) -> int:
        char = self._take()
        if char == "\\":
            kind = self._take()
            if kind == "D":
                raise UnknownSyntaxError
            return _escape(kind)
        if not char or not char.isascii() or char in "[]^&~":
            raise UnknownSyntaxError
        if char == "-" and self._next() != "]":  # where a plain one is no matter of taste
            raise UnknownSyntaxError
        return 1 << ord(char)

    def _characters(self, ascii_mask: int, *, beyond_ascii: bool) -> Node:
        made = self._made
        nodes = [made.one_of(ascii_mask)]
        if beyond_ascii:
            nodes += (_sequence_of(ranges, made) for ranges in _BEYOND_ASCII)
        return made.either(nodes)


_BEYOND_ASCII: tuple[tuple[tuple[int, int], ...], ...] = (
    ((0xC2, 0xDF), (0x80, 0xBF)),
    ((0xE0, 0xE0), (0xA0, 0xBF), (0x80, 0xBF)),
    ((0xE1, 0xEC), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xED, 0xED), (0x80, 0x9F), (0x80, 0xBF)),
    ((0xEE, 0xEF), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xF0, 0xF0), (0x90, 0xBF), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xF1, 0xF3), (0x80, 0xBF), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xF4, 0xF4), (0x80, 0x8F), (0x80, 0xBF), (0x80, 0xBF)),
)
"""Characters from U+0080 on, byte by byte: first and last of each (Unicode 15, table 3-7)."""


def _sequence_of(ranges: tuple[tuple[int, int], ...], made: Expressions) -> Node:
    sequence = EMPTY
    for first, last in reversed(ranges):
        sequence = made.then(made.one_of(_bits(range(first, last + 1))), sequence)
    return sequence


def _bits(numbers: Iterator[int] | range) -> int:
    return sum(1 << number for number in numbers)


def _escape(kind: str) -> int:
    if kind in _ESCAPES:
        return _ESCAPES[kind]
    if not kind or kind not in _PUNCTUATION:
        raise UnknownSyntaxError
    return 1 << ord(kind)
