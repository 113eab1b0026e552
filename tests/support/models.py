"""Small models in the layout of the Hugging Face hub, written into a folder: RAND, SCRIPT and SCRIPT-W of the cases."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from tests.support.tokenizer_files import (
    BOS,
    END_OF_TURN,
    EOS,
    TokenizerOptions,
    byte_level_piece,
    pieces_tokenizer,
    rand_tokenizer,
    sentencepiece_piece,
    sentencepiece_tokenizer,
    write_tokenizer,
)

Piece = str | bytes
TokenizerKind = Literal["bpe", "sentencepiece"]

RAND_VOCAB = 512
_MODEL_TYPES = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3": "gemma3_text",
}
_RAND_CONFIG: dict[str, Any] = {
    "vocab_size": RAND_VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
_RAND_EXTRAS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 24},
    "qwen2": {},
    "qwen3": {},
    "gemma3": {
        "num_hidden_layers": 6,
        "sliding_window": 24,
        "query_pre_attn_scalar": 20,
        "tie_word_embeddings": True,
    },
}


def rand_model(
    folder: Path,
    arch: str = "llama",
    *,
    tokenizer_size: int = RAND_VOCAB,
    options: TokenizerOptions = TokenizerOptions(),  # noqa: B008 (frozen)
    seed: int = 0,
    std: float = 0.3,
    max_shard_size: str = "1GB",
    **overrides: Any,
) -> Path:
    """RAND: random weights (fp32), large enough that the greedy choice depends on far-back tokens.

    ``overrides`` are fields of config.json. Biases are about 1, so that dropping them shows. Returns ``folder``.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = rand_tokenizer(tokenizer_size)
    ids = _special_ids(tokenizer)
    settings = _RAND_CONFIG | _RAND_EXTRAS[arch] | {"bos_token_id": ids[BOS], "eos_token_id": ids[EOS]} | overrides
    config = AutoConfig.for_model(_MODEL_TYPES[arch], pad_token_id=None, **settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(_random_weight(name, weight, std, generator))
    model.generation_config.eos_token_id = [ids[EOS], ids[END_OF_TURN]]
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    write_tokenizer(folder, tokenizer, options)
    return folder


def _random_weight(name: str, weight: Tensor, std: float, generator: torch.Generator) -> Tensor:
    noise = torch.randn(weight.shape, generator=generator)
    if name.endswith("norm.weight"):
        return weight + 0.1 * noise  # around 1, or around 0 in Gemma
    return noise if name.endswith(".bias") else std * noise


def edit_json(path: Path, changes: Mapping[str, Any], remove: Sequence[str] = ()) -> None:
    """Set and remove fields of a JSON file of a model folder."""
    value = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: entry for key, entry in value.items() if key not in remove}))


@dataclass(frozen=True)
class ScriptModel:
    """``piece_ids``: ids of the script's pieces in order; after them comes ``eos_id``."""

    path: Path
    piece_ids: tuple[int, ...]
    eos_id: int
    tokenizer: Tokenizer


def script_model(
    folder: Path,
    pieces: Sequence[Piece],
    tokenizer_kind: TokenizerKind = "bpe",
    options: TokenizerOptions = TokenizerOptions(),  # noqa: B008 (frozen)
    vocab_rows: int | None = None,
) -> ScriptModel:
    """SCRIPT: types ``pieces`` and then EOS after any prompt, each token with a logit 20 above all others.

    A chain: the next token follows from the last one alone, so a piece may come again only with the same successor,
    and a prompt must not end with a piece of the script. ``bytes`` pieces may hold part of a character.

    Raises:
        ValueError: a piece has two successors.
    """
    tokenizer, ids = _piece_tokenizer(pieces, tokenizer_kind)
    eos = _special_ids(tokenizer)[EOS]
    successors: dict[int, int] = {}
    for token_id, successor in zip(ids, [*ids[1:], eos], strict=True):
        if successors.setdefault(token_id, successor) != successor:
            raise ValueError(f"{tokenizer.id_to_token(token_id)!r} is followed by two different pieces of the script")
    rows = vocab_rows or tokenizer.get_vocab_size()
    logits = torch.zeros(rows, rows)
    for token_id in range(rows):
        logits[token_id, successors.get(token_id, ids[0])] = 20.0
    write_chain(folder, logits, tokenizer, options)
    return ScriptModel(folder, tuple(ids), eos, tokenizer)


def script_w_model(
    folder: Path,
    best: Mapping[str, str],
    second: Mapping[str, str],
    options: TokenizerOptions = TokenizerOptions(add_bos=False),  # noqa: B008 (frozen)
) -> ScriptModel:
    """SCRIPT-W: after piece p, ``best[p]`` has logit 2, ``second[p]`` 1, and all other tokens 0.

    Pieces that are no keys have logits of 0 only. ``piece_ids`` of the answer are those of ``best``, in order.
    """
    pieces = list(dict.fromkeys([*best, *best.values(), *second, *second.values()]))
    tokenizer, ids = _piece_tokenizer(pieces, "bpe")
    id_of = dict(zip(pieces, ids, strict=True))
    logits = torch.zeros(tokenizer.get_vocab_size(), tokenizer.get_vocab_size())
    for table, value in ((second, 1.0), (best, 2.0)):
        for piece, successor in table.items():
            logits[id_of[piece], id_of[successor]] = value
    write_chain(folder, logits, tokenizer, options)
    return ScriptModel(folder, tuple(id_of[piece] for piece in best), _special_ids(tokenizer)[EOS], tokenizer)


def write_chain(folder: Path, logits: Tensor, tokenizer: Tokenizer, options: TokenizerOptions) -> None:
    """A Llama whose logits after token i are ``logits[i]`` ([rows, rows]), whatever came before.

    Embeddings are one-hot and attention and MLP add nothing; the last norm makes a one-hot vector sqrt(hidden) long.
    """
    rows = logits.shape[0]
    hidden, inner, head_dim = rows + (-rows % 16), 16, 16
    layer = "model.layers.0."
    weights = {
        "model.embed_tokens.weight": torch.eye(rows, hidden),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": torch.nn.functional.pad(logits.T, (0, hidden - rows)) / hidden**0.5,
        layer + "input_layernorm.weight": torch.ones(hidden),
        layer + "post_attention_layernorm.weight": torch.ones(hidden),
        layer + "self_attn.o_proj.weight": torch.zeros(hidden, head_dim),
        layer + "mlp.gate_proj.weight": torch.zeros(inner, hidden),
        layer + "mlp.up_proj.weight": torch.zeros(inner, hidden),
        layer + "mlp.down_proj.weight": torch.zeros(hidden, inner),
    } | {layer + f"self_attn.{name}_proj.weight": torch.zeros(head_dim, hidden) for name in "qkv"}
    ids = _special_ids(tokenizer)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": rows,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": head_dim,
        "max_position_embeddings": 4096,
        # So small that the norm scales a one-hot vector by sqrt(hidden) to the last bits.
        "rms_norm_eps": 1e-12,
        "tie_word_embeddings": False,
        "bos_token_id": ids[BOS],
        "eos_token_id": ids[EOS],
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [ids[EOS], ids[END_OF_TURN]]}))
    write_tokenizer(folder, tokenizer, options)


def _piece_tokenizer(pieces: Sequence[Piece], kind: TokenizerKind) -> tuple[Tokenizer, list[int]]:
    """A tokenizer with ``pieces`` and the id of each."""
    if kind == "bpe":
        tokenizer, write = pieces_tokenizer(pieces), byte_level_piece
    else:
        tokenizer, write = sentencepiece_tokenizer(pieces), sentencepiece_piece
    vocab = tokenizer.get_vocab()
    return tokenizer, [vocab[write(piece)] for piece in pieces]


def _special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    vocab = tokenizer.get_vocab()
    return {text: vocab[text] for text in (BOS, EOS, END_OF_TURN)}
