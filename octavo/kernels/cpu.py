"""The native CPU back end: each operation is one call of the C++ library (csrc/), fp32."""

from collections.abc import Sequence
from ctypes import CDLL, byref

import torch
from torch import Tensor

from octavo.core.timing import Timed, untimed
from octavo.kernels import cpu_stored, native
from octavo.kernels.cpu_linear import WEIGHT_TYPES, CpuLinear
from octavo.kernels.cpu_quantized import CpuQuantizedLinear, CpuQuantizedPart, pack, quantized_row_floats
from octavo.kernels.cpu_sampling import CpuSampling
from octavo.kernels.interface import AttentionSpec, BatchLayout, KVLayer, Linear, RopeTable, Step
from octavo.kernels.kinds import Activation
from octavo.kernels.native import NativeLibraryMissingError
from octavo.kernels.native_batch import native_batch, set_kv
from octavo.kernels.program import as_register, empty_like_rows
from octavo.kernels.quantized import FORMATS, QuantizedFormat, Weight, quantized_parts
from octavo.kernels.recording import CpuRecordedStep, LayerLayout
from octavo.kernels.stored_linear import StoredLinear

__all__ = ["CpuLinear", "CpuOps", "NativeLibraryMissingError"]

_LANES = 16
_ROUNDING = 2
"""Raised with every change of what the kernels round."""
_ACTIVATIONS: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1}


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
        """Instruction set in use."""
        return str(self._library.octavo_isa().decode())

    @property
    def arithmetic(self) -> str:
        """What the bits of results depend on: keys and values that outlive a process name it. Where it differs, bits
        differ within the tolerance of the contract."""
        return f"{_ROUNDING} {self._library.octavo_arithmetic().decode()}"

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
        rows = weight.contiguous() if weight.dtype in WEIGHT_TYPES else _fp32(weight)
        packed = torch.empty(-(-out_features // _LANES), in_features, _LANES, dtype=rows.dtype)
        linear = CpuLinear(packed, None if bias is None else _fp32(bias), out_features, in_features)
        self._library.octavo_pack_linear(
            rows.data_ptr(), linear.weight_type, packed.data_ptr(), out_features, in_features
        )
        return linear

    @property
    def linear_layout(self) -> str:
        return cpu_stored.LAYOUT

    def store_linear(self, linear: Linear) -> StoredLinear:
        assert isinstance(linear, CpuLinear | CpuQuantizedLinear)
        return cpu_stored.store_linear(linear)

    def restore_linear(self, stored: StoredLinear) -> CpuLinear | CpuQuantizedLinear:
        return cpu_stored.restore_linear(stored)

    def embed(self, table: Tensor | Linear, token_ids: Tensor, scale: float = 1.0) -> Tensor:
        if isinstance(table, Tensor):
            return self._gather_rows(_weight(table, token_ids), token_ids, scale)
        assert token_ids.dtype == torch.int64
        out = empty_like_rows(token_ids, table.in_features)
        given = (table.out_features, token_ids.data_ptr(), out.data_ptr(), *out.shape, scale)
        if isinstance(table, CpuQuantizedLinear):
            (part,) = table.parts
            status = self._library.octavo_gather_quantized(part.packed.data_ptr(), part.format_number, *given)
        else:
            assert isinstance(table, CpuLinear)
            status = self._library.octavo_gather_packed(table.packed.data_ptr(), table.weight_type, *given)
        return _checked(status, out, f"a row outside 0 .. {table.out_features - 1}")

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x, weight = _fp32(x), _weight(weight, x)
        out = empty_like_rows(x, x.shape[1])
        self._library.octavo_norm(x.data_ptr(), weight.data_ptr(), out.data_ptr(), *x.shape, eps)
        return out

    def norm_heads(self, qkv: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, spec: AttentionSpec) -> Tensor:
        qkv, q_weight, k_weight = _fp32(qkv), _weight(q_weight, qkv), _weight(k_weight, qkv)
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
        y = empty_like_rows(x, weight.out_features)
        self._library.octavo_linear(
            x.data_ptr(),
            weight.packed.data_ptr(),
            weight.weight_type,
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
        q = empty_like_rows(qkv, spec.num_heads * spec.head_dim)
        status = self._library.octavo_rotate_and_write_kv(
            qkv.data_ptr(),
            rope.cos.data_ptr(),
            rope.sin.data_ptr(),
            rope.cos.shape[0],
            byref(_batch(kv, batch)),
            byref(_shape(spec, kv)),
            q.data_ptr(),
        )
        return _checked(status, q, "a position past the rotary table or a slot outside the KV memory")

    def attention(self, q: Tensor, kv: KVLayer, batch: BatchLayout, spec: AttentionSpec) -> Tensor:
        q = _fp32(q)
        out = empty_like_rows(q, q.shape[1])
        status = self._library.octavo_attention(
            q.data_ptr(), byref(_batch(kv, batch)), byref(_shape(spec, kv)), out.data_ptr()
        )
        return _checked(status, out, "a block table without a block of the context")

    def gate(self, x: Tensor, activation: Activation) -> Tensor:
        x = _fp32(x)
        out = empty_like_rows(x, x.shape[1] // 2)
        self._library.octavo_gate(x.data_ptr(), out.data_ptr(), *out.shape, _ACTIVATIONS[activation])
        return out

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        assert x.shape == y.shape
        x, y = _fp32(x), _fp32(y)
        self._library.octavo_add(x.data_ptr(), y.data_ptr(), *x.shape)
        return x

    def take_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        return self._gather_rows(_fp32(x), rows, 1.0)

    def argmax(self, x: Tensor, count: int) -> Tensor:
        x = _fp32(x)
        assert 0 < count <= x.shape[1]
        out = empty_like_rows(x, dtype=torch.int64)
        self._library.octavo_argmax(x.data_ptr(), out.data_ptr(), *x.shape, count)
        return out

    def record(
        self, step: Step, kv: Sequence[tuple[KVLayer, int]], max_logit_rows: int, timed: Timed = untimed
    ) -> CpuRecordedStep:
        return CpuRecordedStep(self._library, step, kv, max_logit_rows, timed)

    def sampling(self, timed: Timed = untimed) -> CpuSampling:
        return CpuSampling(self._library, timed)

    def copy_blocks(self, layers: Sequence[KVLayer], pairs: Sequence[tuple[int, int]]) -> None:
        # By numpy: torch would hand each of these small copies to its threads, which takes far longer than the copy.
        blocks = [tensor.numpy() for layer in layers for tensor in layer.tensors]
        for source, target in pairs:
            for held in blocks:
                held[target] = held[source]

    def _linear_quantized(self, x: Tensor, weight: CpuQuantizedLinear) -> Tensor:
        assert x.shape[1] == weight.in_features
        y = empty_like_rows(x, weight.out_features)
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
        rows = empty_like_rows(x, quantized_row_floats(weight_format, x.shape[1]))
        self._library.octavo_quantize_rows(x.data_ptr(), rows.data_ptr(), FORMATS.index(weight_format), *x.shape)
        return rows

    def _gather_rows(self, table: Tensor, indices: Tensor, scale: float) -> Tensor:
        assert indices.dtype == torch.int64
        register = as_register(table)
        # Of a register all rows that there is memory for: which of them a step has is checked with its row lists.
        table_rows, width = table.shape if register is None else register.memory.shape
        out = empty_like_rows(indices, width)
        status = self._library.octavo_gather_rows(
            table.data_ptr(), table_rows, indices.data_ptr(), out.data_ptr(), indices.shape[0], width, scale
        )
        return _checked(status, out, f"a row outside 0 .. {table_rows - 1}")


def _fp32(x: Tensor) -> Tensor:
    """``x`` as the kernels read it; no copy where it is so already."""
    if as_register(x) is not None:
        return x
    return x.to(torch.float32).contiguous()


def _weight(weight: Tensor, x: Tensor) -> Tensor:
    """``weight`` as the kernels read it, for an operation on ``x``: as long as that may be run."""
    weight = _fp32(weight)
    register = as_register(x)
    if register is not None:
        register.keep(weight)
    return weight


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


def _batch(kv: KVLayer, layout: BatchLayout) -> native.Batch:
    if not isinstance(layout, LayerLayout):
        return native_batch(kv, layout)
    set_kv(layout.batch, kv)
    return layout.batch


def _checked(status: int, result: Tensor, what: str) -> Tensor:
    """Indices come from Octavo's own tables: one that is out of range is a fault of Octavo, not of a request."""
    register = as_register(result)
    if register is not None:
        register.note_fault(what)
    elif status == native.BAD_INDEX:
        raise IndexError(f"The native CPU kernels were given {what}.")
    return result
