"""Tokenizer files of the fixture models: byte-level BPE and SentencePiece with byte fall-back, from pieces given."""

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

BOS, EOS, END_OF_TURN = "<|bos|>", "<|eos|>", "<|end|>"
SPECIALS = (BOS, EOS, END_OF_TURN)
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@dataclass(frozen=True)
class TokenizerOptions:
    """``add_bos``: whether encoding puts BOS first."""

    add_bos: bool = True
    chat_template: str | None = CHAT_TEMPLATE


def byte_alphabet() -> list[str]:
    """The letter that stands for each byte in byte-level BPE (GPT-2), by byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def byte_level_piece(piece: str | bytes) -> str:
    """A piece of text or bytes, as byte-level BPE writes it."""
    letters = byte_alphabet()
    return "".join(letters[byte] for byte in (piece.encode() if isinstance(piece, str) else piece))


def sentencepiece_piece(piece: str | bytes) -> str:
    """A piece of text, or one byte, as SentencePiece writes it."""
    if isinstance(piece, str):
        return piece.replace(" ", "▁")
    if len(piece) != 1:
        raise ValueError(f"SentencePiece has tokens of one byte only, got {piece!r}")
    return f"<0x{piece[0]:02X}>"


def rand_tokenizer(size: int) -> Tokenizer:
    """Byte-level BPE with ``size`` ids: 256 bytes, then merges (space and letter, two letters), then the specials."""
    consonants, vowels = "bcdfghjklmnpqrstvwxyz", "aeiou"
    starts = [("Ġ", letter) for letter in sorted(consonants + vowels)]
    syllables = [*itertools.product(consonants, vowels), *itertools.product(vowels, consonants)]
    words = [("Ġ" + first, second) for first, second in syllables]
    merges = [*starts, *syllables, *words][: size - 256 - len(SPECIALS)]
    vocab = [*byte_alphabet(), *("".join(pair) for pair in merges)]
    return _byte_level(vocab, merges)


def pieces_tokenizer(pieces: Iterable[str | bytes]) -> Tokenizer:
    """Byte-level BPE that can type ``pieces``; text is encoded byte by byte."""
    return _byte_level([*byte_alphabet(), *map(byte_level_piece, pieces)], [])


def sentencepiece_tokenizer(pieces: Iterable[str | bytes]) -> Tokenizer:
    """SentencePiece kind (BPE over characters, bytes where there is none) that can type ``pieces``."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    vocab = _numbered(["<unk>", *bytes_, "▁", *map(sentencepiece_piece, pieces), *SPECIALS])
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    return tokenizer


def write_tokenizer(folder: Path, tokenizer: Tokenizer, options: TokenizerOptions) -> None:
    """tokenizer.json and tokenizer_config.json as ``transformers`` saves them."""
    if options.add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "add_bos_token": options.add_bos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1 << 20,
        "chat_template": options.chat_template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def _byte_level(vocab: Sequence[str], merges: list[tuple[str, str]]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=_numbered([*vocab, *SPECIALS]), merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    return tokenizer


def _numbered(pieces: Iterable[str]) -> dict[str, int]:
    """Ids in order of first appearance."""
    return {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
