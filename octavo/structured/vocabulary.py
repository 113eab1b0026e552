"""A vocabulary as the library needs it, and which of its tokens are text."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from octavo.structured.thinking_marks import ThinkingMarks

Bits = NDArray[np.uint32]
"""One bit an id, in order, from the lowest bit of each word: 1 is a token that may come."""

_END = b"<end of text>"
"""An id of its own, which no model has, stands for the end of every text. With blanks in it no grammar can name it."""


class TokenTexts(Protocol):
    """What of a tokenizer counts here (``octavo.loading.interface.Tokenizer`` has it)."""

    vocab_size: int

    @property
    def special_token_ids(self) -> frozenset[int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...


class _Wrapper:
    """The tokenizer as llguidance asks for it. Nothing is tokenized: see ``grammar.OPTIONS``."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.tokens = [*texts, _END]
        self.eos_token_id = len(texts)
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, _text: object) -> list[int]:
        return []


class Vocabulary:
    """``width``: rows of the model's head. Ids that the tokenizer does not have, special tokens and ``end_ids`` have no
    text: they are part of no answer. Takes about a second for the largest; is not changed after that.

    ``num_words``: of the bits of all ids, as the library writes them. ``texts``: of each id, empty where it has none;
    ``num_token_bytes``: of the longest; ``special_texts``: how special tokens are spelled.
    """

    def __init__(self, tokenizer: TokenTexts, width: int, end_ids: frozenset[int]) -> None:
        from llguidance import LLTokenizer

        self.end_ids = frozenset(token_id for token_id in end_ids if token_id < width)
        self.special_ids = frozenset(i for i in tokenizer.special_token_ids | end_ids if i < width)
        self.marks: dict[tuple[str, str], ThinkingMarks] = {}
        self.special_texts = {i: tokenizer.token_bytes(i) for i in self.special_ids if i < tokenizer.vocab_size}
        num_ids = min(tokenizer.vocab_size, width)
        texts = [b"" if i in self.special_ids else tokenizer.token_bytes(i) for i in range(num_ids)]
        texts += [b""] * (width - num_ids)
        self.texts: Sequence[bytes] = texts
        self.num_token_bytes = max(map(len, texts), default=0)
        wrapper: Any = _Wrapper(texts)
        self.tokenizer = LLTokenizer(wrapper)
        self.num_words = -(-(width + 1) // 32)
        self.text_bits = self.bits_of(token_id for token_id, text in enumerate(texts) if text)

    def ids_of(self, text: str) -> frozenset[int]:
        """The tokens that are spelled so, special ones among them."""
        wanted = text.encode()
        plain = frozenset(token_id for token_id, each in enumerate(self.texts) if each == wanted)
        return plain | self.control_ids(text)

    def control_ids(self, text: str) -> frozenset[int]:
        """The special tokens that are spelled so."""
        wanted = text.encode()
        return frozenset(token_id for token_id, each in self.special_texts.items() if each == wanted)

    def bits_of(self, token_ids: Iterable[int]) -> Bits:
        bits = np.zeros(32 * self.num_words, dtype=np.uint8)
        bits[list(token_ids)] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)
