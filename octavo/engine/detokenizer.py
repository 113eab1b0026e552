"""Tokens to text, one token at a time, never half a character."""

import codecs
import encodings.utf_8
from collections.abc import Collection
from typing import Protocol

# What codecs.getincrementaldecoder gives, typed as what it is: one that keeps undecoded bytes in ``buffer``.
_Utf8Decoder: type[codecs.BufferedIncrementalDecoder] = encodings.utf_8.IncrementalDecoder


class TokenPieces(Protocol):
    """What detokenizing needs of a tokenizer (``octavo.loading.interface.Tokenizer`` has it)."""

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Control tokens, left out of the text when the request asks for it."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes that a token adds to a text in mid-sentence; a token may hold part of a character."""
        ...


class Detokenizer:
    """Incremental decoding of one choice. The joined results equal the decoding of all bytes at once.

    Bytes that can be part of no character become U+FFFD as soon as that is certain; the beginning of a character
    waits for the tokens that complete it.
    """

    __slots__ = ("_decoder", "_skipped", "_token_bytes")

    def __init__(self, pieces: TokenPieces, skip_special: bool = True, shown: Collection[int] = ()) -> None:
        """``shown``: control tokens that are not skipped."""
        self._token_bytes = pieces.token_bytes
        skipped = pieces.special_token_ids if skip_special else frozenset()
        self._skipped = skipped.difference(shown) if shown else skipped
        self._decoder = _Utf8Decoder("replace")

    def add(self, token_id: int) -> str:
        """The characters that this token completes; often one piece, sometimes nothing."""
        if token_id in self._skipped:
            return ""
        piece = self._token_bytes(token_id)
        if piece.isascii() and not self._decoder.buffer:  # nearly always; what follows takes far longer
            return piece.decode("ascii")
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """What is left at the very end: one U+FFFD for an incomplete character (spec D5), else nothing."""
        return self._decoder.decode(b"", True)
