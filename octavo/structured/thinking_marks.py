"""The marks of thinking in a vocabulary: how much of the closing one is there, and which tokens would run past it."""

from collections.abc import Mapping, Sequence

import numpy as np

from octavo.structured.vocabulary import Bits, Vocabulary


class ThinkingMarks:
    """Tokens of a text that goes on until it ends with the closing mark, which no token may run past. ``open_ids``: of
    the mark that begins it.

    The state of a text is the number of bytes of the closing mark that it ends with, as many as can be.
    """

    def __init__(self, opening: str, closing: str, vocabulary: Vocabulary) -> None:
        mark = closing.encode()
        self._mark = mark
        self.open_ids = vocabulary.ids_of(opening)
        self._texts: Sequence[bytes] = vocabulary.texts
        self._marks: Mapping[int, bytes] = {
            token_id: text for token_id, text in vocabulary.special_texts.items() if text == mark
        }
        own = vocabulary.text_bits.copy()
        for token_id in self._marks:
            own[token_id >> 5] |= np.uint32(1 << (token_id & 31))
        last = mark[-1:]
        near = [token_id for token_id, text in enumerate(vocabulary.texts) if last in text]
        self._bits = [self._without(own, state, near) for state in range(len(mark))]

    def after(self, state: int, token_id: int) -> int:
        """The state of a text in ``state`` that goes on with this token."""
        there = self._mark[:state] + self._text(token_id)
        if self._mark in there:
            return len(self._mark)
        longest = min(len(there), len(self._mark) - 1)
        return next(size for size in range(longest, -1, -1) if there.endswith(self._mark[:size]))

    def is_closed(self, state: int) -> bool:
        return state == len(self._mark)

    def bits(self, state: int) -> Bits:
        """The tokens that may come: any text, and the mark, but no text beyond it."""
        return self._bits[state]

    def _text(self, token_id: int) -> bytes:
        known = self._marks.get(token_id)
        if known is not None:
            return known
        return self._texts[token_id] if token_id < len(self._texts) else b""

    def _without(self, own: Bits, state: int, near: Sequence[int]) -> Bits:
        bits = own.copy()
        for token_id in near:
            there = self._mark[:state] + self._texts[token_id]
            if self._mark in there and not there.endswith(self._mark):
                bits[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))
        return bits


def thinking_marks(opening: str, closing: str, vocabulary: Vocabulary) -> ThinkingMarks:
    """Those of the vocabulary, which keeps them: to make them means to look at each of its tokens."""
    made = vocabulary.marks.get((opening, closing))
    if made is None:
        made = vocabulary.marks[opening, closing] = ThinkingMarks(opening, closing, vocabulary)
    return made
