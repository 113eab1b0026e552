"""Tokenizers rebuilt from GGUF metadata against the tokenizers that the metadata were written from."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from octavo.core.errors import ConfigurationError
from octavo.loading.tokenizer import HFTokenizer, load_tokenizer
from tests.loading.texts import TEXTS
from tests.loading.tokenizer_builders import (
    CONTROL,
    PLAIN_ADDED,
    byte_level,
    byte_level_metadata,
    sentencepiece,
    sentencepiece_metadata,
    sentencepiece_pieces,
    write_gguf,
)

MIXED = (
    *TEXTS,
    "a<|im_start|>user\nhi<|im_end|> b",
    "<think> x</think><tool_call>",
    "<s>[INST] x [/INST]</s>",
    "  7 77  7",
)


def _load(tmp_path: Path, metadata: dict[str, Any]) -> HFTokenizer:
    tokenizer = load_tokenizer(write_gguf(tmp_path / "model.gguf", metadata))
    assert isinstance(tokenizer, HFTokenizer)
    return tokenizer


@pytest.mark.parametrize("kind", ["default", "gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_byte_level_twin(kind: str, tmp_path: Path) -> None:
    original = byte_level(kind)
    twin = _load(tmp_path, byte_level_metadata(original, kind))
    for text in MIXED:
        expected = original.encode(text, add_special_tokens=False).ids
        assert twin.encode(text) == expected, text
        assert twin.decode(expected, skip_special_tokens=False) == original.decode(expected, skip_special_tokens=False)
    assert {twin.token_bytes(index) for index in twin.special_token_ids} == {text.encode() for text in CONTROL}


def test_the_kinds_differ() -> None:
    """Otherwise the twins above could be right by chance."""
    kinds = ("gpt-2", "smollm", "llama-bpe", "qwen2")
    state = byte_level("gpt-2").to_str()
    ids = set()
    for kind in kinds:
        backend = byte_level("gpt-2").from_str(state)
        backend.pre_tokenizer = byte_level(kind).pre_tokenizer
        ids.add(tuple(tuple(backend.encode(text).ids) for text in MIXED))
    assert len(ids) == len(kinds)


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_twin(prefix: bool, tmp_path: Path) -> None:
    original = sentencepiece(prefix)
    metadata = {**sentencepiece_metadata(), "tokenizer.ggml.add_bos_token": False}
    twin = _load(tmp_path, {**metadata, "tokenizer.ggml.add_space_prefix": prefix})
    for text in MIXED:
        expected = original.encode(text, add_special_tokens=False).ids
        assert twin.encode(text) == expected, text
        assert twin.decode(expected, skip_special_tokens=False) == original.decode(expected, skip_special_tokens=False)
    assert {twin.token_bytes(index) for index in twin.special_token_ids} == {text.encode() for text in CONTROL}


def _join_best(text: str) -> list[str]:
    """SentencePiece's BPE, word for word: join the neighbours whose joined piece scores best, the leftmost first."""
    scores = {piece: score for piece, score, kind in sentencepiece_pieces() if kind == 1}
    pieces = list(text.replace(" ", "▁"))
    while True:
        joined = [(-scores[a + b], at) for at, (a, b) in enumerate(pairwise(pieces)) if a + b in scores]
        if not joined:
            break
        at = min(joined)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return [byte for piece in pieces for byte in ([piece] if piece in scores else _bytes(piece))]


def _bytes(piece: str) -> list[str]:
    return [f"<0x{byte:02X}>" for byte in piece.encode()]


def test_sentencepiece_joins_the_best_scored(tmp_path: Path) -> None:
    metadata = {**sentencepiece_metadata(), "tokenizer.ggml.add_space_prefix": False}
    twin = _load(tmp_path, {**metadata, "tokenizer.ggml.add_bos_token": False})
    tokens = metadata["tokenizer.ggml.tokens"]
    rng = random.Random(1)
    words = " ".join(TEXTS[:8]).split(" ")
    for _ in range(200):
        text = " ".join(rng.choices(words, k=4)) + rng.choice(["", " ", "é€", "\n"])
        assert [tokens[index] for index in twin.encode(text)] == _join_best(text), text


def test_blank_runs_of_gemma_files_join(tmp_path: Path) -> None:
    metadata = sentencepiece_metadata()
    metadata["general.architecture"] = "gemma3"
    two, three = 1, 2
    metadata["tokenizer.ggml.tokens"][two:two] = ["  ", "   "]
    metadata["tokenizer.ggml.scores"][two:two] = [-1000.0, -1000.0]  # worse than all others, and yet joined first
    metadata["tokenizer.ggml.token_type"][two:two] = [4, 4]
    metadata |= {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
    tokenizer = _load(tmp_path, metadata)
    assert two in tokenizer.encode("+  +")
    assert three in tokenizer.encode("+   +")
    assert tokenizer.token_bytes(three) == b"   "


@pytest.mark.parametrize(
    ("flags", "framed"),
    [
        ({}, ("<s>", None)),
        ({"add_bos_token": False}, (None, None)),
        ({"add_eos_token": True}, ("<s>", "</s>")),
        ({"add_bos_token": False, "add_eos_token": True}, (None, "</s>")),
    ],
)
def test_bos_and_eos_flags(flags: dict[str, bool], framed: tuple[str | None, str | None], tmp_path: Path) -> None:
    metadata = sentencepiece_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    metadata |= {
        "tokenizer.ggml.bos_token_id": tokens.index("<s>"),
        "tokenizer.ggml.eos_token_id": tokens.index("</s>"),
    }
    tokenizer = _load(tmp_path, metadata | {f"tokenizer.ggml.{key}": value for key, value in flags.items()})
    bare = tokenizer.encode("hello", add_special_tokens=False)
    before, after = ([tokens.index(token)] if token else [] for token in framed)
    assert tokenizer.encode("hello") == before + bare + after
    assert tokenizer.encode("<s>hello")[:2].count(tokens.index("<s>")) == 1


def test_byte_level_adds_bos_for_llama3_only(tmp_path: Path) -> None:
    for kind, num_bos in {"llama-bpe": 1, "qwen2": 0}.items():
        metadata = byte_level_metadata(byte_level(kind), kind)
        bos = metadata["tokenizer.ggml.tokens"].index("<|begin_of_text|>")
        tokenizer = _load(tmp_path, metadata | {"tokenizer.ggml.bos_token_id": bos})
        assert tokenizer.encode("hello").count(bos) == num_bos
        assert tokenizer.encode("<|begin_of_text|>hello").count(bos) == 1


def test_eos_ids(tmp_path: Path) -> None:
    metadata = sentencepiece_metadata()
    index = metadata["tokenizer.ggml.tokens"].index
    metadata["tokenizer.ggml.eos_token_id"] = index("</s>")
    turn_ends = {index("<|im_end|>"), index("<|eot_id|>"), index("<end_of_turn>")}
    assert _load(tmp_path, metadata).eos_token_ids == {index("</s>")} | turn_ends
    metadata["tokenizer.ggml.eot_token_id"] = index("<|eot_id|>")
    assert _load(tmp_path, metadata).eos_token_ids == {index("</s>"), index("<|eot_id|>")}


def test_unused_tokens_are_not_in_the_vocabulary(tmp_path: Path) -> None:
    """Padding rows (spec D18)."""
    metadata = byte_level_metadata(byte_level("gpt-2"), "gpt-2")
    used = len(metadata["tokenizer.ggml.tokens"])
    metadata["tokenizer.ggml.tokens"] += ["[PAD1]", "[PAD2]"]
    metadata["tokenizer.ggml.token_type"] += [5, 5]
    tokenizer = _load(tmp_path, metadata)
    assert tokenizer.vocab_size == used
    assert tokenizer.token_bytes(used) == b""
    assert max(tokenizer.encode("[PAD1]")) < used


def test_plain_added_tokens_are_not_special(tmp_path: Path) -> None:
    tokenizer = _load(tmp_path, byte_level_metadata(byte_level("gpt-2"), "gpt-2"))
    (think,) = tokenizer.encode(PLAIN_ADDED[0])
    assert think not in tokenizer.special_token_ids
    assert tokenizer.decode([think]) == PLAIN_ADDED[0]


def test_chat_templates_by_name(tmp_path: Path) -> None:
    metadata = byte_level_metadata(byte_level("gpt-2"), "gpt-2")
    metadata |= {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools"}
    tokenizer = _load(tmp_path, metadata)
    message = {"role": "user", "content": "x"}
    assert tokenizer.decode(tokenizer.apply_chat_template([message])) == "plain"
    assert tokenizer.decode(tokenizer.apply_chat_template([message], tools=[{"type": "function"}])) == "tools"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokenizer.ggml.merges": ["q zzzz"]}, "broken vocabulary.*zzzz"),
        ({"tokenizer.ggml.pre": "unheard-of"}, "'unheard-of'.*smollm"),
        ({"tokenizer.ggml.model": "bert"}, "'bert'.*gpt2 and llama"),
        ({"tokenizer.ggml.tokens": None}, "no vocabulary"),
        ({"tokenizer.ggml.merges": None}, "no merges"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "but 2 token types"),
        ({"tokenizer.ggml.eos_token_id": 999_999}, "eos_token_id 999999"),
        ({"tokenizer.ggml.model": "llama"}, "one score a token"),
    ],
)
def test_refusals(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    metadata = byte_level_metadata(byte_level("gpt-2"), "gpt-2") | change
    with pytest.raises(ConfigurationError, match=words):
        _load(tmp_path, {key: value for key, value in metadata.items() if value is not None})
