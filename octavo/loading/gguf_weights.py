"""The tensors of a GGUF file, under canonical names and in the row order of the original checkpoint."""

import numpy as np
import torch
from gguf import GGMLQuantizationType, ReaderTensor
from torch import Tensor

from octavo.kernels.quantized import QuantizedWeight
from octavo.loading.gguf_header import GGUFHeader
from octavo.loading.gguf_kinds import unpacked
from octavo.loading.gguf_quants import UNPACKERS, quantized_weight

_PLAIN = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


class GGUFCheckpoint(GGUFHeader):
    """A ``Checkpoint`` in one GGUF file."""

    def read(self, name: str) -> Tensor:
        weight = dequantize(self._file_tensors[self.stored_name(name)])
        order = self._row_order(name)
        if order is not None:
            return weight[order]
        if self._architecture == "gemma3" and name.endswith("norm.weight"):
            # The converter adds the 1 that Gemma's norms add to their weight; canonical weights are without it.
            return weight - 1.0
        return weight

    def read_matrix(self, name: str) -> Tensor | QuantizedWeight:
        tensor = self._file_tensors[self.stored_name(name)]
        order = self._row_order(name)
        if tensor.tensor_type in UNPACKERS:
            weight = quantized_weight(tensor.tensor_type, np.asarray(tensor.data), int(tensor.shape[-1]))
            return weight if order is None else weight.rows(order)
        if tensor.tensor_type not in _PLAIN:
            return self.read(name)
        data = np.array(tensor.data).reshape(int(tensor.shape[-1]), -1)
        plain = torch.from_numpy(data).view(_PLAIN[tensor.tensor_type])
        return plain if order is None else plain[order]

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
    return torch.from_numpy(unpacked(tensor))
