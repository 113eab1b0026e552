"""A row whose model may think before it answers: the answer's grammar begins after the mark that ends the thinking."""

from collections.abc import Sequence

import numpy as np

from octavo.core.structured import Thinking
from octavo.runner.row_grammar import RowGrammar
from octavo.structured.thinking_marks import thinking_marks
from octavo.structured.vocabulary import Bits, Vocabulary


class ThinkingGrammar:
    """Has all of ``RowGrammar``, which it keeps for the answer.

        thinking.is_open:   thinking ... close  answer
        not:               (open  thinking ... close)?  answer

    Thinking is any text, without special tokens: so it does not end the whole text. Whether there is some is decided by
    the first token; the opening mark can only be a token of its own.
    """

    def __init__(
        self, answer: RowGrammar, thinking: Thinking, vocabulary: Vocabulary, output_ids: Sequence[int] = ()
    ) -> None:
        self._answer = answer
        self._marks = thinking_marks(thinking.open, thinking.close, vocabulary)
        self._state = 0
        self._is_thinking = thinking.is_open
        self._may_open = not thinking.is_open and bool(self._marks.open_ids)
        self._first: Bits | None = None
        for token_id in output_ids:
            self.consume(token_id)

    def consume(self, token_id: int) -> None:
        """The text goes on with this token."""
        if self._is_thinking:
            self._state = self._marks.after(self._state, token_id)
            self._is_thinking = not self._marks.is_closed(self._state)
            return
        opens = self._may_open and token_id in self._marks.open_ids
        self._may_open = False
        if opens:
            self._is_thinking = True
        else:
            self._answer.consume(token_id)

    def fill(self, drafts: Sequence[int] = ()) -> None:
        """See ``RowGrammar.fill``. Masks of thinking are there already."""
        if not self._is_thinking and not self._may_open:
            self._answer.fill(drafts)
            return
        num_before = self._num_thinking(drafts)
        if num_before is not None:
            self._answer.fill(drafts[num_before:])
        elif self._may_open:
            self._answer.fill()
        self._first = self._with_opening() if self._may_open else None

    def _num_thinking(self, drafts: Sequence[int]) -> int | None:
        """How many drafts come before the answer; None: the answer does not begin within them."""
        state = self._state
        for number, draft in enumerate(drafts):
            if not self._is_thinking and number == 0:
                if draft not in self._marks.open_ids:
                    return 0
                continue
            state = self._marks.after(state, draft)
            if self._marks.is_closed(state):
                return number + 1
        return None

    def _with_opening(self) -> Bits | None:
        bits = self._answer.bits
        if bits is None or self._answer.fault is not None:
            return bits
        bits = bits.copy()
        for token_id in self._marks.open_ids:
            bits[token_id >> 5] |= np.uint32(1 << (token_id & 31))
        return bits

    @property
    def bits(self) -> Bits | None:
        """See ``RowGrammar.bits``."""
        if self._is_thinking:
            return self._marks.bits(self._state)
        return self._first if self._may_open else self._answer.bits

    @property
    def must_end(self) -> bool:
        return not self._is_thinking and not self._may_open and self._answer.must_end

    @property
    def is_complete(self) -> bool:
        return self._answer.is_complete

    @property
    def fault(self) -> str | None:
        return self._answer.fault

    @fault.setter
    def fault(self, reason: str) -> None:
        self._answer.fault = reason


Grammar = RowGrammar | ThinkingGrammar
