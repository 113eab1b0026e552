"""Writes a fixture folder as a GGUF file, as llama.cpp's ``convert_hf_to_gguf.py`` does."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants
from safetensors.torch import load_file

from tests.support.tokenizer_files import BOS, EOS, SPECIALS

Kind = Literal["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0"]
_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
}


def to_gguf(folder: Path, out: Path, kind: Kind = "F32", permute: bool = True) -> Path:
    """Write the model in ``folder`` to ``out``; matrices are stored as ``kind``, vectors as F32.

    ``permute`` False leaves out the reordering of the llama architecture's query and key rows (a broken file, for
    power checks).
    """
    config = json.loads((folder / "config.json").read_text())
    arch = _ARCHITECTURES[config["model_type"]]
    writer = GGUFWriter(out, gguf.MODEL_ARCH_NAMES[arch])
    _add_settings(writer, config)
    _add_tokenizer(writer, folder)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    permutes = permute and arch == gguf.MODEL_ARCH.LLAMA
    for name, weight in _tensors(folder, config, permutes):
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        number_kind = GGMLQuantizationType[kind] if weight.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(stored, quants.quantize(weight, number_kind), raw_dtype=number_kind)
    freqs = _rope_freqs(config)
    if freqs is not None:
        writer.add_tensor("rope_freqs.weight", freqs)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def _tensors(folder: Path, config: dict[str, Any], permutes: bool) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            weight = tensor.float().numpy()
            projection = name.split(".")[-2]
            if permutes and projection in heads:
                weight = _permute(weight, heads[projection])
            if config["model_type"] == "gemma3_text" and name.endswith("norm.weight"):
                weight = weight + 1
            yield name, weight


def _permute(weight: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    halves = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def _add_settings(writer: GGUFWriter, config: dict[str, Any]) -> None:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = _rope(config)
    writer.add_name("fixture")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if config["model_type"] in ("mistral", "gemma3_text") and config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    """Rotary settings of the layers without a window, under the newer key names."""
    rope: dict[str, Any] = config.get("rope_parameters") or {}
    return {"rope_type": "default", "rope_theta": 10000.0} | rope.get("full_attention", rope)


def _rope_freqs(config: dict[str, Any]) -> np.ndarray[Any, Any] | None:
    """Llama 3.1 scaling as the converter writes it: what divides each frequency."""
    rope = _rope(config)
    if rope["rope_type"] != "llama3":
        return None
    dim = config["head_dim"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    context = rope["original_max_position_embeddings"]
    factors = []
    for frequency in 1.0 / (rope["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)):
        wavelength = 2 * math.pi / frequency
        if wavelength < context / high:
            factors.append(1.0)
        elif wavelength > context / low:
            factors.append(rope["factor"])
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def _add_tokenizer(writer: GGUFWriter, folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    vocab = tokenizer["model"]["vocab"] | {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocab, key=lambda token: vocab[token])
    if tokenizer["model"]["byte_fallback"]:
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([-float(index) for index in range(len(tokens))])
        writer.add_unk_token_id(vocab["<unk>"])
        writer.add_add_space_prefix(False)
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_token_list(tokens)
    writer.add_token_types([_token_type(token) for token in tokens])
    writer.add_bos_token_id(vocab[BOS])
    writer.add_eos_token_id(vocab[EOS])
    writer.add_eot_token_id(vocab[SPECIALS[2]])
    writer.add_add_bos_token(settings["add_bos_token"])
    if "chat_template" in settings:
        writer.add_chat_template(settings["chat_template"])


def _token_type(token: str) -> TokenType:
    if token in SPECIALS:
        return TokenType.CONTROL
    if token == "<unk>":
        return TokenType.UNKNOWN
    return TokenType.BYTE if token.startswith("<0x") else TokenType.NORMAL
