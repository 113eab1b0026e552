"""Small tokenizers of both kinds, as model folders and as GGUF files, trained on the spot."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gguf import GGUFWriter, TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE

from tests.loading.texts import TEXTS

CONTROL = (
    "<s>",
    "</s>",
    "<unk>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|im_start|>",
    "<|im_end|>",
    "<bos>",
    "<start_of_turn>",
    "<end_of_turn>",
    "[INST]",
    "[/INST]",
)
PLAIN_ADDED = ("<think>", "<tool_call>")  # added tokens that are not control tokens

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _pre_tokenizer(kind: str) -> Any:
    if kind in {"llama-bpe", "qwen2"}:
        pattern = LLAMA3 if kind == "llama-bpe" else LLAMA3.replace("{1,3}", "")
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    return byte_level


@cache
def _trained(kind: str) -> str:
    backend = Tokenizer(BPE(ignore_merges=kind == "llama-bpe"))
    backend.pre_tokenizer = _pre_tokenizer(kind)
    backend.normalizer = normalizers.NFC() if kind == "qwen2" else None
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(TEXTS, trainer)
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in CONTROL])
    backend.add_tokens([AddedToken(text, normalized=False) for text in PLAIN_ADDED])
    return str(backend.to_str())


def byte_level(kind: str) -> Tokenizer:
    """A byte-level BPE tokenizer that splits text as ``kind`` (a value of tokenizer.ggml.pre) says."""
    return Tokenizer.from_str(_trained(kind))


SP_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))


@cache
def sentencepiece_pieces() -> tuple[tuple[str, float, int], ...]:
    """(piece, score, type) of a SentencePiece vocabulary: control, bytes, then pieces, the earlier the better."""
    learner = Tokenizer(BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    learner.train_from_iterator(TEXTS[:12], trainers.BpeTrainer(vocab_size=500, show_progress=False))
    vocab = learner.get_vocab()
    single = [piece for piece in sorted(vocab, key=vocab.__getitem__) if len(piece) == 1 and ord(piece) < 0x3000]
    joined = [piece for piece in sorted(vocab, key=vocab.__getitem__) if len(piece) > 1]
    known = set(single)
    pieces: list[tuple[str, float, int]] = [("<unk>", 0.0, TokenType.UNKNOWN)]
    pieces += [(text, 0.0, TokenType.CONTROL) for text in CONTROL if text != "<unk>"]
    pieces += [(text, 0.0, TokenType.BYTE) for text in SP_BYTES]
    pieces += [(text, 0.0, TokenType.USER_DEFINED) for text in PLAIN_ADDED]
    pieces += [(text, -float(rank), TokenType.NORMAL) for rank, text in enumerate(joined) if set(text) <= known]
    return (*pieces, *((text, -1000.0 - rank, TokenType.NORMAL) for rank, text in enumerate(single)))


def sentencepiece(prefix: bool) -> Tokenizer:
    """The tokenizer.json of that vocabulary, as the public converter makes it; ``prefix``: a leading blank."""
    pieces = sentencepiece_pieces()
    ids = {piece: index for index, (piece, _, _) in enumerate(pieces)}
    merges = []
    for piece, score, kind in pieces:
        cuts = range(1, len(piece)) if kind == TokenType.NORMAL else ()
        for left, right in ((piece[:cut], piece[cut:]) for cut in cuts):
            if left in ids and right in ids:
                merges.append((-score, ids[left], ids[right], left, right))
    pairs = [(left, right) for *_, left, right in sorted(merges)]
    backend = Tokenizer(BPE(ids, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in CONTROL])
    backend.add_tokens([AddedToken(text, normalized=False) for text in PLAIN_ADDED])
    return backend


def write_folder(folder: Path, backend: Tokenizer, **config: Any) -> Path:
    """tokenizer.json and tokenizer_config.json; ``config`` adds fields to the second."""
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **config})
    return folder


def write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")


def byte_level_metadata(backend: Tokenizer, kind: str) -> dict[str, Any]:
    """What the public converter writes about a byte-level tokenizer, without named tokens."""
    state = json.loads(backend.to_str())
    added = backend.get_added_tokens_decoder()
    tokens = [str(backend.id_to_token(index)) for index in range(backend.get_vocab_size())]
    types = [TokenType.NORMAL] * len(tokens)
    for token_id, token in added.items():
        types[token_id] = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": kind,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in state["model"]["merges"]],
    }


def sentencepiece_metadata() -> dict[str, Any]:
    pieces = sentencepiece_pieces()
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [piece for piece, _, _ in pieces],
        "tokenizer.ggml.scores": [score for _, score, _ in pieces],
        "tokenizer.ggml.token_type": [int(kind) for _, _, kind in pieces],
        "tokenizer.ggml.unknown_token_id": 0,
    }


def write_gguf(file: Path, metadata: Mapping[str, Any]) -> Path:
    """A GGUF file of metadata alone."""
    writer = GGUFWriter(file, str(metadata["general.architecture"]))
    for key, value in metadata.items():
        if key == "general.architecture":
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, Sequence):
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
