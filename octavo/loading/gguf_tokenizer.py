"""Tokenizers rebuilt from the metadata of a GGUF file.

A GGUF file carries the vocabulary but not the rules around it. Those are known by name: ``tokenizer.ggml.model`` says
byte-level BPE ("gpt2") or SentencePiece ("llama"), ``tokenizer.ggml.pre`` how a byte-level one splits text. Each kind
is built as the model's original tokenizer.json has it, so that ids equal the original's. Key names and defaults are
llama.cpp's (src/llama-vocab.cpp, gguf-py/gguf/constants.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import TokenType
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from octavo.core.errors import ConfigurationError
from octavo.loading.gguf_reader import GGUFFile
from octavo.loading.tokenizer_parts import TokenizerParts, frame

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _Split:
    """How one kind of byte-level BPE prepares text.

    ``pattern``: regular expression of the pieces; None for GPT-2's own. ``digits``: each digit is a piece, before that.
    ``ignore_merges``: a piece that is a token needs no merges. ``add_bos``: if the file does not say.
    """

    pattern: str | None = None
    digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False


_GPT2 = _Split()
_DIGITS = _Split(digits=True)
_LLAMA3 = _Split(_LLAMA3_SPLIT, ignore_merges=True, add_bos=True)
_QWEN2 = _Split(_QWEN2_SPLIT, nfc=True)
_SPLITS: Mapping[str, _Split] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _Split(_TEKKEN_SPLIT, ignore_merges=True),
}

# Their scores are not in the order of the original merges; the order of the ids is.
_MERGES_BY_ID = frozenset({"gemma", "gemma2", "gemma3"})

# Ends of a turn, for files without tokenizer.ggml.eot_token_id, whose eos_token_id may be the end of a text only.
_TURN_ENDS = frozenset({"<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>"})

_NAMED_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def gguf_tokenizer(path: Path) -> TokenizerParts:
    """The tokenizer that the GGUF file at ``path`` describes.

    Raises:
        ConfigurationError: no tokenizer in it, a kind that is not known, or an inconsistent one.
    """
    return tokenizer_from_metadata(GGUFFile(path).metadata, str(path))


def tokenizer_from_metadata(metadata: Mapping[str, Any], source: str) -> TokenizerParts:
    """As ``gguf_tokenizer``, from metadata already read; ``source`` names the file in errors."""
    vocabulary = _Vocabulary(metadata, source)
    model = metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        kind = str(metadata.get("tokenizer.ggml.pre", "default"))
        split = _SPLITS.get(kind)
        if split is None:
            raise ConfigurationError(
                f"{source} splits text in the way {kind!r} (tokenizer.ggml.pre), which is not supported; supported are "
                f"{', '.join(sorted(_SPLITS))}; use the model's safetensors folder, which has its own tokenizer.json"
            )
        backend, add_bos = _byte_level(vocabulary, metadata, split), split.add_bos
    elif model == "llama":
        backend, add_bos = _sentencepiece(vocabulary, metadata), True
    else:
        raise ConfigurationError(
            f"{source} has a tokenizer of kind {model!r} (tokenizer.ggml.model), which is not supported; supported are "
            "gpt2 and llama; use the model's safetensors folder, which has its own tokenizer.json"
        )
    named = {name: vocabulary.named(key) for name, key in _NAMED_TOKENS.items()}
    special = {name: token for name, token in named.items() if token is not None}
    backend.add_special_tokens(
        [AddedToken(token, normalized=False) for token in dict.fromkeys([*vocabulary.control, *special.values()])]
    )
    # Runs of blanks that the SentencePiece kind respelled are joined by merges, not found as added tokens.
    known = [token for token in vocabulary.user_defined if backend.token_to_id(token) is not None]
    backend.add_tokens([AddedToken(token, normalized=False) for token in known])
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token", add_bos)
    adds_eos = metadata.get("tokenizer.ggml.add_eos_token", False)
    frame(backend, special.get("bos_token") if adds_bos else None, special.get("eos_token") if adds_eos else None)
    return TokenizerParts(backend, special, vocabulary.eos_token_ids(), _chat_templates(metadata))


class _Vocabulary:
    """The tokens of a file by kind. Tokens marked unused are padding and are left out."""

    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        tokens = metadata.get("tokenizer.ggml.tokens")
        if not tokens:
            raise ConfigurationError(f"{source} has no vocabulary (tokenizer.ggml.tokens); use a file with a tokenizer")
        self._metadata = metadata
        self.source = source
        self.tokens: list[str] = tokens
        kinds: Sequence[int] = metadata.get("tokenizer.ggml.token_type") or [TokenType.NORMAL] * len(tokens)
        if len(kinds) != len(tokens):
            raise ConfigurationError(f"{source} has {len(tokens)} tokens but {len(kinds)} token types; fetch it again")
        by_kind: dict[int, list[str]] = {kind: [] for kind in TokenType}
        for token, kind in zip(tokens, kinds, strict=True):
            by_kind.setdefault(kind, []).append(token)
        unused = set(by_kind[TokenType.UNUSED])
        self.ids = {token: index for index, token in enumerate(tokens) if not unused or token not in unused}
        self.control = by_kind[TokenType.CONTROL]
        self.user_defined = by_kind[TokenType.USER_DEFINED]
        self.unmergeable = frozenset(self.control + by_kind[TokenType.UNKNOWN] + by_kind[TokenType.BYTE]) | unused

    def named(self, key: str) -> str | None:
        """The token whose id stands under tokenizer.ggml.``key``."""
        token_id = self._metadata.get(f"tokenizer.ggml.{key}")
        if token_id is None:
            return None
        if not 0 <= token_id < len(self.tokens):
            raise ConfigurationError(
                f"{self.source} gives tokenizer.ggml.{key} {token_id}, but has only {len(self.tokens)} tokens"
            )
        return self.tokens[int(token_id)]

    def eos_token_ids(self) -> frozenset[int]:
        """Ends of text, turn and message; the turn's end by its usual names if the file does not tell its id."""
        ends = [token for key in ("eos_token_id", "eot_token_id", "eom_token_id") if (token := self.named(key))]
        if "tokenizer.ggml.eot_token_id" not in self._metadata:
            ends += _TURN_ENDS.intersection(self.control)
        return frozenset(self.ids[token] for token in ends if token in self.ids)


def _byte_level(vocabulary: _Vocabulary, metadata: Mapping[str, Any], split: _Split) -> Backend:
    merges = metadata.get("tokenizer.ggml.merges")
    if merges is None:
        raise ConfigurationError(f"{vocabulary.source} has no merges (tokenizer.ggml.merges); fetch a newer file")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    backend = _bpe(vocabulary, vocabulary.ids, pairs, ignore_merges=split.ignore_merges)
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if split.digits else []
    if split.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if split.nfc:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(vocabulary: _Vocabulary, metadata: Mapping[str, Any]) -> Backend:
    """BPE over text with ``▁`` for blanks, bytes for what has no token."""
    ids = vocabulary.ids
    if metadata.get("general.architecture") in _MERGES_BY_ID:
        # Runs of blanks stand in these files as blanks; in the original, and to the merges, they are runs of ▁.
        ids = {"▁" * len(token) if token and not token.strip(" ") else token: index for token, index in ids.items()}
        ranked: Iterable[str] = ids
    else:
        scores: Sequence[float] | None = metadata.get("tokenizer.ggml.scores")
        if scores is None or len(scores) != len(vocabulary.tokens):
            raise ConfigurationError(
                f"{vocabulary.source} does not have one score a token (tokenizer.ggml.scores); fetch it again"
            )
        ranked = sorted(ids, key=lambda token: -scores[ids[token]])
    backend = _bpe(
        vocabulary,
        ids,
        _merges(ids, ranked, vocabulary.unmergeable),
        unk_token=vocabulary.named("unknown_token_id"),
        fuse_unk=True,
        byte_fallback=True,
    )
    backend.normalizer = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), backend.normalizer])
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    return backend


def _bpe(vocabulary: _Vocabulary, ids: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> Backend:
    try:
        return Backend(BPE(ids, merges, **options))
    except Exception as error:  # the library raises nothing more special
        raise ConfigurationError(f"{vocabulary.source} has a broken vocabulary ({error}); fetch it again") from error


def _merges(ids: Mapping[str, int], ranked: Iterable[str], unmergeable: frozenset[str]) -> list[tuple[str, str]]:
    """Every way to join two tokens into a third, best first: by the rank of the third, then by the ids of the two.

    SentencePiece joins the pair whose result scores best; BPE joins by a list of pairs. This is the list with the same
    effect, in the order in which the public converter of SentencePiece models writes it into a tokenizer.json.
    """
    usable = {token: index for token, index in ids.items() if token not in unmergeable}
    merges: list[tuple[str, str]] = []
    for token in ranked:
        if len(token) < 2 or token not in usable:
            continue
        cuts = range(1, len(token))
        pairs = [(token[:cut], token[cut:]) for cut in cuts if token[cut:] in usable and token[:cut] in usable]
        if len(pairs) > 1:
            pairs.sort(key=lambda pair: (usable[pair[0]], usable[pair[1]]))
        merges += pairs
    return merges


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    prefix = "tokenizer.chat_template."
    templates = {key.removeprefix(prefix): str(text) for key, text in metadata.items() if key.startswith(prefix)}
    if "tokenizer.chat_template" in metadata:
        templates["default"] = str(metadata["tokenizer.chat_template"])
    return templates
