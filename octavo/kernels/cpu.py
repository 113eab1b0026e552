"""The native CPU back end: each operation is one call of the C++ library (csrc/), fp32."""

from collections.abc import Sequence
from ctypes import CDLL, byref
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.core.errors import ConfigurationError
from octavo.kernels import native
from octavo.kernels.cpu_quantized import CpuQuantizedLinear, CpuQuantizedPart, pack, quantized_row_floats
from octavo.kernels.interface import Activation, AttentionSpec, BatchLayout, KVLayer, Linear, RopeTable
from octavo.kernels.native import NativeLibraryMissingError
from octavo.kernels.quantized import FORMATS, QuantizedFormat, Weight, quantized_parts

__all__ = ["CpuLinear", "CpuOps", "NativeLibraryMissingError"]

_LANES = 16
_BATCH_TYPES = (torch.int32, torch.int64, torch.int32, torch.int32)
_KV_TYPES = {torch.float32: 0, torch.float16: 1, torch.int8: 2}
"""OctavoKvType."""
_ACTIVATIONS: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1}


@dataclass(frozen=True, slots=True)
class CpuLinear:
    """``packed``: fp32 [ceil(out / 16), in, 16], zeros past ``out_features``; ``bias``: fp32 [out]."""

    packed: Tensor
    bias: Tensor | None
    out_features: int
    in_features: int


class CpuOps:
    """``Ops`` over the native library; threads and instruction set are those of the process.

    Raises:
        NativeLibraryMissingError: the library was not built.
        ConfigurationError: OCTAVO_ISA or OCTAVO_THREADS cannot be followed.
    """

    name = "cpu"

    def __init__(self) -> None:
        self._library: CDLL = native.load()

    @property
    def isa(self) -> str:
        """Instruction set in use. Between two of them bits may differ, within the tolerance of the contract."""
        return str(self._library.octavo_isa().decode())

    @property
    def num_threads(self) -> int:
        return int(self._library.octavo_num_threads())

    def set_num_threads(self, count: int) -> None:
        """Threads that share one operation, the caller's included. Bits do not depend on it."""
        self._library.octavo_set_num_threads(count)

    def make_linear(self, weight: Weight, bias: Tensor | None = None) -> CpuLinear | CpuQuantizedLinear:
        if not isinstance(weight, Tensor):
            parts: list[CpuQuantizedPart] = []
            for part in quantized_parts(weight):
                parts.append(pack(self._library, part, sum(above.out_features for above in parts)))
            bias = None if bias is None else _fp32(bias)
            return CpuQuantizedLinear(tuple(parts), bias, weight.out_features, weight.in_features)
        out_features, in_features = weight.shape
        packed = torch.empty(-(-out_features // _LANES), in_features, _LANES)
        rows = _fp32(weight)
        self._library.octavo_pack_linear(rows.data_ptr(), packed.data_ptr(), out_features, in_features)
        return CpuLinear(packed, None if bias is None else _fp32(bias), out_features, in_features)

    def embed(self, table: Tensor | Linear, token_ids: Tensor, scale: float = 1.0) -> Tensor:
        if isinstance(table, Tensor):
            return self._gather_rows(_fp32(table), token_ids, scale)
        assert isinstance(table, CpuQuantizedLinear)
        (part,) = table.parts
        token_ids = token_ids.to(torch.int64).contiguous()
        out = torch.empty(token_ids.shape[0], table.in_features)
        status = self._library.octavo_gather_quantized(
            part.packed.data_ptr(),
            part.format_number,
            table.out_features,
            token_ids.data_ptr(),
            out.data_ptr(),
            *out.shape,
            scale,
        )
        _check(status, f"a row outside 0 .. {table.out_features - 1}")
        return out

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x, weight = _fp32(x), _fp32(weight)
        out = torch.empty_like(x)
        rows, width = x.shape
        self._library.octavo_norm(x.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, width, eps)
        return out

    def norm_heads(self, qkv: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, spec: AttentionSpec) -> Tensor:
        qkv, q_weight, k_weight = _fp32(qkv), _fp32(q_weight), _fp32(k_weight)
        shape = _shape(spec)
        self._library.octavo_norm_heads(
            qkv.data_ptr(), q_weight.data_ptr(), k_weight.data_ptr(), qkv.shape[0], byref(shape), eps
        )
        return qkv

    def linear(self, x: Tensor, weight: Linear) -> Tensor:
        if isinstance(weight, CpuQuantizedLinear):
            return self._linear_quantized(_fp32(x), weight)
        assert isinstance(weight, CpuLinear)
        assert x.shape[1] == weight.in_features
        x = _fp32(x)
        y = torch.empty(x.shape[0], weight.out_features)
        self._library.octavo_linear(
            x.data_ptr(),
            weight.packed.data_ptr(),
            None if weight.bias is None else weight.bias.data_ptr(),
            y.data_ptr(),
            x.shape[0],
            weight.in_features,
            weight.out_features,
        )
        return y

    def rotate_and_write_kv(
        self, qkv: Tensor, rope: RopeTable, kv: KVLayer, batch: BatchLayout, spec: AttentionSpec
    ) -> Tensor:
        qkv = _fp32(qkv)
        q = torch.empty(qkv.shape[0], spec.num_heads * spec.head_dim)
        status = self._library.octavo_rotate_and_write_kv(
            qkv.data_ptr(),
            rope.cos.data_ptr(),
            rope.sin.data_ptr(),
            rope.cos.shape[0],
            byref(_batch(kv, batch)),
            byref(_shape(spec, kv)),
            q.data_ptr(),
        )
        _check(status, "a position past the rotary table or a slot outside the KV memory")
        return q

    def attention(self, q: Tensor, kv: KVLayer, batch: BatchLayout, spec: AttentionSpec) -> Tensor:
        q = _fp32(q)
        out = torch.empty_like(q)
        status = self._library.octavo_attention(
            q.data_ptr(), byref(_batch(kv, batch)), byref(_shape(spec, kv)), out.data_ptr()
        )
        _check(status, "a block table without a block of the context")
        return out

    def gate(self, x: Tensor, activation: Activation) -> Tensor:
        x = _fp32(x)
        rows, width = x.shape[0], x.shape[1] // 2
        out = torch.empty(rows, width)
        self._library.octavo_gate(x.data_ptr(), out.data_ptr(), rows, width, _ACTIVATIONS[activation])
        return out

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        assert x.shape == y.shape
        x, y = _fp32(x), _fp32(y)
        self._library.octavo_add(x.data_ptr(), y.data_ptr(), *x.shape)
        return x

    def take_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        return self._gather_rows(_fp32(x), rows, 1.0)

    def copy_blocks(self, layers: Sequence[KVLayer], pairs: Sequence[tuple[int, int]]) -> None:
        # By numpy: torch would hand each of these small copies to its threads, which takes far longer than the copy.
        blocks = [tensor.numpy() for layer in layers for tensor in layer.tensors]
        for source, target in pairs:
            for held in blocks:
                held[target] = held[source]

    def _linear_quantized(self, x: Tensor, weight: CpuQuantizedLinear) -> Tensor:
        assert x.shape[1] == weight.in_features
        y = torch.empty(x.shape[0], weight.out_features)
        for part in weight.parts:
            rows = self._quantize_rows(x, part.format)
            bias = None if weight.bias is None else weight.bias[part.first_output :]
            self._library.octavo_linear_quantized(
                rows.data_ptr(),
                part.packed.data_ptr(),
                part.format_number,
                None if bias is None else bias.data_ptr(),
                y.data_ptr() + part.first_output * y.itemsize,
                weight.out_features,
                x.shape[0],
                weight.in_features,
                part.out_features,
            )
        return y

    def _quantize_rows(self, x: Tensor, weight_format: QuantizedFormat) -> Tensor:
        rows = torch.empty(x.shape[0], quantized_row_floats(weight_format, x.shape[1]))
        self._library.octavo_quantize_rows(x.data_ptr(), rows.data_ptr(), FORMATS.index(weight_format), *x.shape)
        return rows

    def _gather_rows(self, table: Tensor, indices: Tensor, scale: float) -> Tensor:
        indices = indices.to(torch.int64).contiguous()
        table_rows, width = table.shape
        out = torch.empty(indices.shape[0], width)
        status = self._library.octavo_gather_rows(
            table.data_ptr(), table_rows, indices.data_ptr(), out.data_ptr(), indices.shape[0], width, scale
        )
        _check(status, f"a row outside 0 .. {table_rows - 1}")
        return out


def _fp32(x: Tensor) -> Tensor:
    """``x`` as the kernels read it; no copy where it is so already."""
    return x.to(torch.float32).contiguous()


def _shape(spec: AttentionSpec, kv: KVLayer | None = None) -> native.AttentionShape:
    return native.AttentionShape(
        spec.num_heads,
        spec.num_kv_heads,
        spec.head_dim,
        kv.block_size if kv else 0,
        kv.values.shape[0] if kv else 0,
        spec.window or 0,
        spec.scale,
        spec.soft_cap or 0.0,
    )


def _batch(kv: KVLayer, batch: BatchLayout) -> native.Batch:
    kv_type = _KV_TYPES.get(kv.keys.dtype)
    if kv_type is None or (kv.keys.dtype == torch.int8) != (kv.key_scales is not None):
        raise ConfigurationError(
            f"The native CPU kernels hold KV in float32, float16, or in int8 with scales, not {kv.keys.dtype}."
        )
    types = (batch.positions.dtype, batch.slots.dtype, batch.query_starts.dtype, batch.block_tables.dtype)
    if types != _BATCH_TYPES:
        raise TypeError(f"A batch layout holds {_BATCH_TYPES} (docs/kernel-contract.md), not {types}.")
    return native.Batch(
        kv.keys.data_ptr(),
        kv.values.data_ptr(),
        None if kv.key_scales is None else kv.key_scales.data_ptr(),
        None if kv.value_scales is None else kv.value_scales.data_ptr(),
        batch.positions.data_ptr(),
        batch.slots.data_ptr(),
        batch.query_starts.data_ptr(),
        batch.block_tables.data_ptr(),
        batch.num_rows,
        batch.context_lens.shape[0],
        batch.block_tables.shape[1],
        batch.block_tables.stride(0),
        kv_type,
    )


def _check(status: int, what: str) -> None:
    """Indices come from Octavo's own tables: one that is out of range is a fault of Octavo, not of a request."""
    if status == native.BAD_INDEX:
        raise IndexError(f"The native CPU kernels were given {what}.")
