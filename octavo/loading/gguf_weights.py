"""The tensors of a GGUF file in fp32, under canonical names and in the row order of the original checkpoint."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, ReaderTensor, quants
from torch import Tensor

from octavo.core.errors import ConfigurationError
from octavo.kernels.quantized import QuantizedWeight
from octavo.loading.checkpoint import StoredTensor
from octavo.loading.gguf_config import ROPE_FREQS, gguf_architecture, gguf_model_config
from octavo.loading.gguf_quants import UNPACKERS, quantized_weight
from octavo.loading.gguf_reader import GGUFFile
from octavo.models.registry import model_class
from octavo.models.weights import HEAD

_QUANTS: dict[GGMLQuantizationType, Any] = {
    kind: getattr(quants, kind.name)
    for kind in (
        GGMLQuantizationType.BF16,
        GGMLQuantizationType.Q4_0,
        GGMLQuantizationType.Q4_1,
        GGMLQuantizationType.Q5_0,
        GGMLQuantizationType.Q8_0,
        GGMLQuantizationType.Q4_K,
        GGMLQuantizationType.Q6_K,
    )
}
_PLAIN = (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
# Numbers unpacked at a time by one thread: temporaries stay in its cache.
_CHUNK = 1 << 17
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


class GGUFCheckpoint:
    """A ``Checkpoint`` in one GGUF file.

    Raises:
        ConfigurationError: the file is broken, its architecture or a setting is not supported, or a tensor has a
            number format that is not.
    """

    def __init__(self, path: Path) -> None:
        file = GGUFFile(path)
        self.path = path
        self.files: tuple[Path, ...] = (path,)
        self._tensors = file.tensors
        self._architecture = gguf_architecture(file.metadata)
        embedding = _required(file, "token_embd.weight")
        freqs = file.tensors.get(ROPE_FREQS)
        self.config = gguf_model_config(
            file.metadata,
            vocab_size=int(embedding.shape[-1]),
            tensor_names=set(file.tensors),
            rope_freqs=None if freqs is None else dequantize(freqs).tolist(),
        )
        names = [*model_class(self.config).weight_shapes(self.config), HEAD]
        self._stored_names = _stored_names(self._architecture, names, self.config.num_layers)
        canonical = {stored: name for name, stored in self._stored_names.items()}
        self.tensors: Mapping[str, StoredTensor] = {
            canonical.get(name, name): _describe(tensor) for name, tensor in file.tensors.items() if name != ROPE_FREQS
        }
        ids = [file.metadata.get(f"tokenizer.ggml.{key}") for key in _EOS_KEYS]
        self.eos_token_ids = frozenset(token_id for token_id in ids if isinstance(token_id, int))
        self.generation_config: Mapping[str, Any] = {}

    def stored_name(self, name: str) -> str:
        return self._stored_names.get(name, name)

    def read(self, name: str) -> Tensor:
        weight = dequantize(self._tensors[self.stored_name(name)])
        order = self._row_order(name)
        if order is not None:
            return weight[order]
        if self._architecture == "gemma3" and name.endswith("norm.weight"):
            # The converter adds the 1 that Gemma's norms add to their weight; canonical weights are without it.
            return weight - 1.0
        return weight

    def read_matrix(self, name: str) -> Tensor | QuantizedWeight:
        tensor = self._tensors[self.stored_name(name)]
        if tensor.tensor_type not in UNPACKERS:
            return self.read(name)
        weight = quantized_weight(tensor.tensor_type, np.asarray(tensor.data), int(tensor.shape[-1]))
        order = self._row_order(name)
        return weight if order is None else weight.rows(order)

    def _row_order(self, name: str) -> Tensor | None:
        """For each canonical row of a weight or bias its row in the file; None: the same order."""
        if self._architecture == "llama" and "self_attn.q_proj" in name:
            return unpermuted_rows(self.config.num_heads, self.config.head_dim)
        if self._architecture == "llama" and "self_attn.k_proj" in name:
            return unpermuted_rows(self.config.num_kv_heads, self.config.head_dim)
        return None


def unpermuted_rows(num_heads: int, head_dim: int) -> Tensor:
    """Which rows of the file undo the converter's reordering of llama's query and key projections, int64 [n].

    The converter makes the two halves of each head alternate (rotation of neighbours); here, halves are rotated.
    ``num_heads``: the KV heads for keys.
    """
    return torch.arange(num_heads * head_dim).view(num_heads, head_dim // 2, 2).transpose(1, 2).flatten()


def dequantize(tensor: ReaderTensor) -> Tensor:
    """A tensor of the file in fp32, in memory of its own; axes in the order of torch (last one contiguous).

    Raises:
        ConfigurationError: its number format is not supported.
    """
    shape = tuple(int(size) for size in reversed(tensor.shape))
    data = np.asarray(tensor.data)
    if tensor.tensor_type in _PLAIN:
        return torch.from_numpy(data.astype(np.float32)).reshape(shape)
    _check_kind(tensor)
    unpack = _QUANTS[tensor.tensor_type].dequantize_blocks
    block_size, block_bytes = GGML_QUANT_SIZES[tensor.tensor_type]
    blocks = data.reshape(-1, block_bytes)
    out = np.empty((len(blocks), block_size), np.float32)
    step = max(1, _CHUNK // block_size)

    def unpack_chunk(start: int) -> None:
        out[start : start + step] = unpack(blocks[start : start + step])

    with ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:
        list(pool.map(unpack_chunk, range(0, len(blocks), step)))
    return torch.from_numpy(out).reshape(shape)


def _stored_names(architecture: str, names: list[str], num_layers: int) -> dict[str, str]:
    """Canonical name -> name in the file, for every weight of the model."""
    kind = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    table = gguf.get_tensor_name_map(kind, num_layers)
    stored = {name: table.get_name(name, try_suffixes=(".weight", ".bias")) for name in names}
    return {name: found for name, found in stored.items() if found is not None}


def _describe(tensor: ReaderTensor) -> StoredTensor:
    _check_kind(tensor)
    return StoredTensor(
        shape=tuple(int(size) for size in reversed(tensor.shape)),
        kind=tensor.tensor_type.name,
        num_bytes=int(tensor.n_bytes),
    )


def _check_kind(tensor: ReaderTensor) -> None:
    if tensor.tensor_type not in (*_PLAIN, *_QUANTS):
        known = ", ".join(kind.name for kind in (*_PLAIN, *_QUANTS))
        raise ConfigurationError(
            f"GGUF tensor {tensor.name} is stored as {tensor.tensor_type.name}, which is not supported; "
            f"supported: {known}"
        )


def _required(file: GGUFFile, name: str) -> ReaderTensor:
    if name not in file.tensors:
        raise ConfigurationError(f"{file.path}: tensor {name} is missing; the file is incomplete")
    return file.tensors[name]
