"""Tokens to text: B23, D5, and any text cut into tokens anywhere."""

import codecs
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.detokenizer import Detokenizer

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
TEXT = f"a{FAMILY} ď漢字e\u0301\U0001f1e8\U0001f1ff end"


class Pieces:
    """A tokenizer whose token i adds ``pieces[i]``."""

    def __init__(self, pieces: list[bytes], special_token_ids: frozenset[int] = frozenset()) -> None:
        self.pieces = pieces
        self.special_token_ids = special_token_ids

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]


def deltas(pieces: list[bytes]) -> list[str]:
    detokenizer = Detokenizer(Pieces(pieces))
    return [detokenizer.add(token_id) for token_id in range(len(pieces))] + [detokenizer.finish()]


def sentencepiece_bytes(piece: str) -> bytes:
    """What a SentencePiece token adds to a text: byte-fallback pieces are written <0xE6>, a space is written as ▁."""
    if piece.startswith("<0x"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("▁", " ").encode()


def test_byte_level_tokens_give_whole_characters_only() -> None:
    """B23: one token a byte; the family is 18 bytes."""
    assert len(FAMILY.encode()) == 18
    out = deltas([bytes([byte]) for byte in TEXT.encode()])
    assert "".join(out) == TEXT
    assert "\ufffd" not in "".join(out)
    assert [delta for delta in out if delta] == list(TEXT)


def test_sentencepiece_byte_fallback_keeps_spaces() -> None:
    """B23: ordinary pieces with ▁ for a space beside byte-fallback pieces."""
    fallback = [f"<0x{byte:02X}>" for byte in f"{FAMILY}".encode()]
    ideographs = [f"<0x{byte:02X}>" for byte in "漢字".encode()]
    pieces = ["a", *fallback, "▁", "ď", *ideographs, "e", "\u0301", "▁end"]
    out = deltas([sentencepiece_bytes(piece) for piece in pieces])
    assert "".join(out) == f"a{FAMILY} ď漢字e\u0301 end"
    assert out[-2] == " end"


@pytest.mark.parametrize("tail", [b"\xf0", b"\xf0\x9f", b"\xf0\x9f\x91", b"\xe6\xbc", b"\xc4"])
def test_incomplete_tail_is_one_replacement_character(tail: bytes) -> None:
    """D5, whether the tail comes in one token or in several."""
    assert deltas([b"a", tail]) == ["a", "", "\ufffd"]
    assert "".join(deltas([b"a", *(bytes([byte]) for byte in tail)])) == "a\ufffd"


def test_bytes_that_start_no_character_are_replaced_at_once() -> None:
    assert deltas([b"a\xff", b"b"]) == ["a\ufffd", "b", ""]
    assert deltas([b"\xf0\x9f", b"b"]) == ["", "\ufffdb", ""]


def test_special_tokens_are_dropped_or_kept() -> None:
    pieces = Pieces([b"a", b"<|end|>", b"\xc4", b"\x8f"], frozenset({1}))
    dropping, keeping = Detokenizer(pieces), Detokenizer(pieces, skip_special=False)
    assert [dropping.add(token_id) for token_id in (0, 1)] == ["a", ""]
    assert [keeping.add(token_id) for token_id in (0, 1)] == ["a", "<|end|>"]
    assert [dropping.add(token_id) for token_id in (2, 1, 3)] == ["", "", "ď"]


@given(st.data(), st.one_of(st.binary(max_size=40), st.text(max_size=20).map(lambda text: text.encode("utf-8"))))
def test_any_bytes_in_any_cut_give_the_text_of_all_bytes(data: st.DataObject, whole: bytes) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    bounds = [0, *cuts, len(whole)]
    out = deltas([whole[start:end] for start, end in pairwise(bounds)])
    assert "".join(out) == whole.decode("utf-8", "replace")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    assert "".join(out[:-1]) == decoder.decode(whole)
