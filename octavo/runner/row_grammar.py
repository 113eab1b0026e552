"""Where the text of one sequence stands in its grammar, and which tokens may come next."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from octavo.structured.byte_expressions import Node
from octavo.structured.compiler import CompiledGrammar, is_of_text
from octavo.structured.vocabulary import Bits

if TYPE_CHECKING:
    from llguidance import LLMatcher

_TOO_COMPLEX = "the grammar is too complex to be followed"


class RowGrammar:
    """State of one row; made anew, from all tokens, when the row comes back after preemption.

    ``stop_ids``: those that end the sequence. Where the text may end, these may come, as far as they are no text; and
    where it must, the model's own ends too, whatever was asked for (spec D6).

    ``fill`` finds what may come next, and after each of the drafts that follow, on a thread of its own; after that
    ``consume`` takes the tokens that were drawn. ``is_complete``: no more text may come. ``fault``: why the grammar can
    be followed no further; no token may come then. What others do with the same grammar has no part in it, but for when
    the library's bounds are met, if ever.

    ``_left``: what may follow the first ``_num_read`` tokens, where masks are remembered by it.
    """

    __slots__ = (
        "_at",
        "_bits",
        "_compiled",
        "_end_ids",
        "_exit_ids",
        "_filled",
        "_left",
        "_matcher",
        "_memory",
        "_must_end",
        "_num_read",
        "_text_bits",
        "_texts",
        "_tokens",
        "fault",
        "is_complete",
    )

    def __init__(self, compiled: CompiledGrammar, stop_ids: Iterable[int], output_ids: Sequence[int] = ()) -> None:
        vocabulary = compiled.vocabulary
        self._compiled = compiled
        self._matcher: LLMatcher = compiled.new_matcher()
        self._tokens: list[int] = []
        self._text_bits = compiled.text_bits
        self._texts = vocabulary.texts
        self._memory = compiled.memory
        self._left: Node | None = None
        self._num_read = 0
        self._exit_ids = vocabulary.special_ids.intersection(stop_ids)
        self._end_ids = vocabulary.end_ids.union(self._exit_ids)
        self._bits: Bits = np.zeros((1, vocabulary.num_words), dtype=np.uint32)
        self._must_end = [False]
        self._filled = 0
        self._at = 0
        self.is_complete = False
        self.fault: str | None = None
        for token_id in output_ids:
            self.consume(token_id)

    def consume(self, token_id: int) -> None:
        """The text goes on with this token."""
        if self._is_over():
            return
        self._at += 1
        if token_id in self._end_ids:
            self.is_complete = True
        else:
            self._tokens.append(token_id)
            if not self._matcher.consume_token(token_id):
                self._recover()
            self.is_complete = self.fault is None and self._matcher.is_stopped()

    def _recover(self) -> None:
        """The matcher has failed at the text itself."""
        if is_of_text(self._matcher.get_error()):  # to read it all again would only take time
            self.fault = "the grammar is too ambiguous to be followed"
        else:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """With another matcher, which shares nothing with this one where that has met what they share. Where that
        fails, too, it is for what this text asks of its grammar."""
        if not is_of_text(self._matcher.get_error()) and not self._compiled.renew():
            self.fault = _TOO_COMPLEX
            return
        self._matcher = self._compiled.new_matcher()
        if not self._matcher.consume_tokens(self._tokens):
            self._compiled.renew()
            self.fault = f"the text has left its grammar, or {_TOO_COMPLEX}"

    def fill(self, drafts: Sequence[int] = ()) -> None:
        """Find what may come next, and what after each of ``drafts``, as far as these may come."""
        self._at = self._filled = 0
        if self._is_over():
            return
        if len(self._bits) <= len(drafts):
            self._bits = np.zeros((len(drafts) + 1, self._bits.shape[1]), dtype=np.uint32)
        self._read()
        self._must_end = [self._fill_first()]
        if drafts and not self._is_over():
            self._fill_after(drafts)
        self._filled = len(self._must_end)

    def _read(self) -> None:
        if self._memory is None:
            return
        unread = self._tokens[self._num_read :]
        self._left = self._memory.after((self._texts[token_id] for token_id in unread), self._left)
        self._num_read = len(self._tokens)
        if self._left is None:
            self._memory = None

    def _fill_first(self) -> bool:
        must_end = self._fill_next(self._bits[0], self._left)
        if not self._matcher.is_error():
            return must_end
        self._recover()
        if self.fault is not None:
            return False
        must_end = self._fill_next(self._bits[0], self._left)
        if self._matcher.is_error():
            self._compiled.renew()
            self.fault = _TOO_COMPLEX
        return must_end

    def _fill_after(self, drafts: Sequence[int]) -> None:
        matcher, num_consumed, left = self._matcher, 0, self._left
        for number, draft in enumerate(drafts, 1):
            if not self._is_text(draft) or not matcher.try_consume_tokens([draft]):
                break
            num_consumed = number
            if matcher.is_stopped():
                break
            if self._memory is not None and left is not None:
                left = self._memory.after((self._texts[draft],), left)
            must_end = self._fill_next(self._bits[number], left)
            if matcher.is_error():
                break  # it is looked at again when no draft stands before it
            self._must_end.append(must_end)
        if matcher.is_error() or (num_consumed and not matcher.rollback(num_consumed)):
            self._begin_anew()

    def _is_text(self, token_id: int) -> bool:
        return token_id >> 5 < len(self._text_bits) and bool(self._text_bits[token_id >> 5] >> (token_id & 31) & 1)

    def _is_over(self) -> bool:
        return self.is_complete or self.fault is not None

    def _fill_next(self, bits: Bits, left: Node | None) -> bool:
        """``left``: what may follow here, if that is known. Returns whether the text must end here."""
        matcher = self._matcher
        mask = self._memory.mask(left) if self._memory is not None and left is not None else None
        if mask is not None:
            bits[:] = mask
        else:
            self._find_mask(bits, left)
        if not matcher.is_accepting():
            return False
        must_end = not bits.any()
        for token_id in self._end_ids if must_end else self._exit_ids:
            bits[token_id >> 5] |= np.uint32(1 << (token_id & 31))
        return must_end

    def _find_mask(self, bits: Bits, left: Node | None) -> None:
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        np.bitwise_and(bits, self._text_bits, out=bits)
        if self._memory is not None and left is not None and not self._matcher.is_error():
            self._memory.keep(left, bits)

    @property
    def bits(self) -> Bits | None:
        """Which tokens may come next; None: all, since nothing counts any more."""
        if self.is_complete:
            return None
        at = self._at
        if self.fault is not None or at >= self._filled:
            at = 0
            self._bits.fill(0)
        bits: Bits = self._bits[at]
        return bits

    @property
    def must_end(self) -> bool:
        """Only an end may come next."""
        return not self.is_complete and self._at < self._filled and self._must_end[self._at]
