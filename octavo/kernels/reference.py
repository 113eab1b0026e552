"""The specification of every operation, in plain torch: clear rather than quick.

Each operation whose bits could depend on how many rows share a call (reductions, matrix products, exp and tanh, whose
vector and tail paths differ) runs one row at a time, on fresh contiguous memory, with shapes that follow from the row's
position alone. What is done for all rows at once is only moved, multiplied or added element by element, which IEEE 754
rounds in one way. So a row's bits are a function of its own values, position and context.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from octavo.core.timing import Timed, untimed
from octavo.kernels.interface import AttentionSpec, BatchLayout, KVLayer, Linear, RopeTable, Step
from octavo.kernels.kinds import Activation
from octavo.kernels.quantized import QuantizedWeight, Weight, quantize_activations, quantized_parts
from octavo.kernels.reference_quantized import ReferencePart, part_times_row, reference_part


@dataclass(frozen=True, slots=True)
class ReferenceLinear:
    """``weight`` fp32 [out, in], ``bias`` fp32 [out]."""

    weight: Tensor
    bias: Tensor | None

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]


@dataclass(frozen=True, slots=True)
class ReferenceQuantizedLinear:
    """``weights``: as given, for ``embed``; ``parts``: as ``part_times_row`` takes them; ``bias`` fp32 [out]."""

    weights: tuple[QuantizedWeight, ...]
    parts: tuple[ReferencePart, ...]
    bias: Tensor | None

    @property
    def out_features(self) -> int:
        return sum(weight.out_features for weight in self.weights)

    @property
    def in_features(self) -> int:
        return self.weights[0].in_features


class ReferenceOps:
    """``Ops`` in torch, row by row. Runs wherever torch does; the fall-back where there is no compiler."""

    name = "reference"

    def make_linear(self, weight: Weight, bias: Tensor | None = None) -> ReferenceLinear | ReferenceQuantizedLinear:
        bias = None if bias is None else bias.float().contiguous()
        if isinstance(weight, Tensor):
            return ReferenceLinear(weight.float().contiguous(), bias)
        weights = quantized_parts(weight)
        return ReferenceQuantizedLinear(weights, tuple(map(reference_part, weights)), bias)

    def embed(self, table: Tensor | Linear, token_ids: Tensor, scale: float = 1.0) -> Tensor:
        if isinstance(table, Tensor):
            return table[token_ids].float() * scale
        if isinstance(table, ReferenceLinear):
            return table.weight[token_ids] * scale
        assert isinstance(table, ReferenceQuantizedLinear)
        (weight,) = table.weights
        return weight.rows(token_ids).dequantize() * scale

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return _by_row(lambda row: _rms_norm(row, weight, eps), x)

    def norm_heads(self, qkv: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, spec: AttentionSpec) -> Tensor:
        heads = _heads(qkv, spec).clone()
        for i in range(spec.num_heads + spec.num_kv_heads):
            heads[:, i] = self.norm(heads[:, i], q_weight if i < spec.num_heads else k_weight, eps)
        return heads.flatten(1)

    def linear(self, x: Tensor, weight: Linear) -> Tensor:
        if isinstance(weight, ReferenceQuantizedLinear):
            y = _by_row(lambda row: torch.cat([part_times_row(row, p) for p in weight.parts]), x, weight.out_features)
        else:
            assert isinstance(weight, ReferenceLinear)
            y = _by_row(lambda row: torch.mv(weight.weight, row), x, weight.out_features)
        return y if weight.bias is None else y + weight.bias

    def rotate_and_write_kv(
        self, qkv: Tensor, rope: RopeTable, kv: KVLayer, batch: BatchLayout, spec: AttentionSpec
    ) -> Tensor:
        heads, first_value = _heads(qkv, spec), spec.num_heads + spec.num_kv_heads
        q, k, v = heads[:, : spec.num_heads], heads[:, spec.num_heads : first_value], heads[:, first_value:]
        positions = batch.positions.long()
        cos, sin = rope.cos[positions, None], rope.sin[positions, None]  # [R, 1, D / 2]
        block_ids, offsets = batch.slots // kv.block_size, batch.slots % kv.block_size
        keys = _rotate(k, cos, sin)
        if kv.key_scales is not None and kv.value_scales is not None:
            keys, kv.key_scales[block_ids, :, offsets] = _quantize(keys)
            v, kv.value_scales[block_ids, :, offsets] = _quantize(v)
        kv.keys[block_ids, :, :, offsets] = keys.to(kv.keys.dtype)
        kv.values[block_ids, :, offsets] = v.to(kv.values.dtype)
        return _rotate(q, cos, sin).flatten(1)

    def attention(self, q: Tensor, kv: KVLayer, batch: BatchLayout, spec: AttentionSpec) -> Tensor:
        out = torch.empty_like(q)
        starts = batch.query_starts.tolist()
        for s, (begin, end) in enumerate(pairwise(starts)):
            for row in range(begin, end):
                position = int(batch.positions[row])
                out[row] = _attend(q[row].clone(), *_gather(kv, batch.block_tables[s], position, spec.window), spec)
        return out

    def gate(self, x: Tensor, activation: Activation) -> Tensor:
        half = x.shape[1] // 2
        return _by_row(lambda row: _activate(row, activation), x[:, :half]) * x[:, half:]

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def take_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        return x[rows]

    def argmax(self, x: Tensor, count: int) -> Tensor:
        return torch.from_numpy(x[:, :count].numpy().argmax(axis=1))

    def record(
        self, step: Step, kv: Sequence[tuple[KVLayer, int]], max_logit_rows: int, timed: Timed = untimed
    ) -> None:
        return None

    def sampling(self, timed: Timed = untimed) -> None:
        """The specification is the runner's own."""

    def copy_blocks(self, layers: Sequence[KVLayer], pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            for layer in layers:
                for tensor in layer.tensors:
                    tensor[target] = tensor[source]


def _by_row(function: Callable[[Tensor], Tensor], x: Tensor, width: int | None = None) -> Tensor:
    """``function`` of each row of ``x`` [R, n] -> [R, width or n]; each row in memory of its own."""
    out = torch.empty(x.shape[0], width or x.shape[1])
    for i in range(x.shape[0]):
        out[i] = function(x[i].clone(memory_format=torch.contiguous_format))
    return out


def _rms_norm(row: Tensor, weight: Tensor, eps: float) -> Tensor:
    return row / torch.sqrt(row.square().mean() + eps) * weight


def _activate(row: Tensor, activation: Activation) -> Tensor:
    if activation == "silu":
        return functional.silu(row)
    return functional.gelu(row, approximate="tanh")


def _heads(qkv: Tensor, spec: AttentionSpec) -> Tensor:
    """[R, (H + 2G) * D] -> [R, H + 2G, D]."""
    return qkv.view(qkv.shape[0], spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of each head of ``x`` [R, heads, D]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each head of ``x`` [R, G, D] as whole numbers int8 [R, G, D] in -127 .. 127 and a scale fp32 [R, G], by the rule
    of ``quantize_activations``: a head is a group."""
    numbers, scales = quantize_activations(x.flatten(1), x.shape[-1], 127)
    return numbers.to(torch.int8), scales


def _gather(kv: KVLayer, table: Tensor, position: int, window: int | None) -> tuple[Tensor, Tensor]:
    """Exactly the keys and values that a query at ``position`` sees, each fp32 [G, T, D]; nothing else is read."""
    first = 0 if window is None else max(0, position - window + 1)
    visible = torch.arange(first, position + 1)
    block_ids, offsets = table[visible // kv.block_size].long(), visible % kv.block_size
    keys = kv.keys[block_ids, :, :, offsets].float()  # [T, G, D]
    values = kv.values[block_ids, :, offsets].float()
    if kv.key_scales is not None and kv.value_scales is not None:
        keys = keys * kv.key_scales[block_ids, :, offsets, None]
        values = values * kv.value_scales[block_ids, :, offsets, None]
    return keys.transpose(0, 1).contiguous(), values.transpose(0, 1).contiguous()


def _attend(q: Tensor, keys: Tensor, values: Tensor, spec: AttentionSpec) -> Tensor:
    """One query row [H * D] over ``keys`` and ``values`` [G, T, D] -> [H * D]."""
    grouped = q.view(spec.num_kv_heads, spec.num_heads // spec.num_kv_heads, spec.head_dim)
    scores = torch.bmm(grouped, keys.transpose(1, 2)) * spec.scale  # [G, H / G, T]
    if spec.soft_cap is not None:
        scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
    return torch.bmm(scores.softmax(dim=-1), values).flatten()
