"""Text that comes in pieces and is read once, character by character, by a generator that waits for more.

A reader of a language is a generator over a ``TextFeed``. It yields where it needs text that has not come yet, and is
resumed when it has, so it is written as if the whole text were there. What it does depends on the characters alone,
never on how they were cut into pieces.
"""

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

T = TypeVar("T")

Reading = Generator[None, None, T]
"""Yields to wait for more text; returns what was read."""

BLANKS = re.compile(r"[ \t\r\n]*")


class EndOfTextError(Exception):
    """The text ended where the reader needed more."""


class TextFeed:
    """``is_cut``: the text was ended by a limit, not by who wrote it; known once ``ended``."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._mark: int | None = None
        self.ended = False
        self.is_cut = False

    def add(self, text: str) -> None:
        kept = self._at if self._mark is None else self._mark
        self._text = self._text[kept:] + text
        self._at -= kept
        if self._mark is not None:
            self._mark = 0

    def end(self, is_cut: bool) -> None:
        self.ended, self.is_cut = True, is_cut

    def set_mark(self) -> None:
        """What is read from here on can be had again, until ``release``."""
        self._mark = self._at

    def release(self) -> None:
        self._mark = None

    def since_mark(self) -> str:
        """What was read since ``set_mark``; the mark is gone then."""
        assert self._mark is not None
        text, self._mark = self._text[self._mark : self._at], None
        return text

    def go_back(self) -> None:
        """What was read since ``set_mark`` is unread again."""
        assert self._mark is not None
        self._at = self._mark

    def peek(self) -> Reading[str]:
        """The next character, which stays unread.

        Raises:
            EndOfTextError: there is none.
        """
        while self._at == len(self._text):
            if self.ended:
                raise EndOfTextError
            yield
        return self._text[self._at]

    def take(self) -> str:
        """The next character, which ``peek`` has shown."""
        self._at += 1
        return self._text[self._at - 1]

    def run(self, pattern: re.Pattern[str]) -> str:
        """The longest part, of what is there, that matches from here on."""
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found.group()

    def run_all(self, pattern: re.Pattern[str]) -> Reading[str]:
        """The longest part that matches from here on, to its end. ``pattern``: a repeated character class.

        Raises:
            EndOfTextError: the text ends with it.
        """
        found = ""
        while True:
            found += self.run(pattern)
            if not pattern.fullmatch((yield from self.peek())):
                return found

    def match(self, literal: str) -> Reading[bool]:
        """Reads ``literal`` if it comes next.

        Raises:
            EndOfTextError: the text ends with a beginning of it.
        """
        while True:
            there = self._text[self._at : self._at + len(literal)]
            if there == literal:
                self._at += len(literal)
                return True
            if not literal.startswith(there):
                return False
            if self.ended:
                raise EndOfTextError
            yield

    def until(self, literals: Sequence[str], emit: Callable[[str], None]) -> Reading[None]:
        """Gives all before the first of ``literals`` to ``emit``, as it comes, and stops there.

        Raises:
            EndOfTextError: none came; all has been given.
        """
        while True:
            places = [at for at in (self._text.find(each, self._at) for each in literals) if at >= 0]
            end = min(places) if places else len(self._text) - (0 if self.ended else self._num_undecided(literals))
            if end > self._at:
                emit(self._text[self._at : end])
                self._at = end
            if places:
                return
            if self.ended:
                raise EndOfTextError
            yield

    def _num_undecided(self, literals: Sequence[str]) -> int:
        """Length of the longest end of the unread text that one of the literals begins with."""
        text, undecided = self._text, 0
        for literal in literals:
            at = text.find(literal[0], max(self._at, len(text) - len(literal) + 1))
            while at >= 0 and not literal.startswith(text[at:]):
                at = text.find(literal[0], at + 1)
            if at >= 0:
                undecided = max(undecided, len(text) - at)
        return undecided
