"""The operations that a model is written against, and what crosses into them. Every back end implements ``Ops``.

Shapes: R rows (one a token to compute), S sequences, H query heads, G KV heads, D head size, B block size.
Contract: docs/kernel-contract.md. The reference back end is the specification.
"""

import contextlib
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from octavo.core.timing import Timed, untimed
from octavo.kernels.kinds import Activation
from octavo.kernels.quantized import Weight
from octavo.kernels.sampling import Sampling


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What one layer's attention is: fixed for the life of a model.

    A query at position p sees keys at positions j with j <= p and, with ``window`` w, j > p - w.
    ``soft_cap`` c replaces a score s (after ``scale``) by c * tanh(s / c).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    soft_cap: float | None = None


SCALE_DTYPE = torch.float32


@dataclass(frozen=True, slots=True)
class KVLayer:
    """The KV memory that one layer reads and writes: its part of every block of the pool.

    ``keys``: [num_blocks, G, D, B] (transposed inside a block, so that a dot product runs along B);
    ``values``: [num_blocks, G, B, D]. Same dtype, contiguous: fp32, fp16, or int8 with scales.
    ``key_scales``, ``value_scales``: fp32 [num_blocks, G, B], contiguous, one a token and KV head; a key (value) is its
    scale times what is held. None where ``keys`` and ``values`` hold the numbers themselves.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @property
    def block_size(self) -> int:
        return self.values.shape[2]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that the layer holds of a block, each [num_blocks, ...]: what moves when a block is copied."""
        held = (self.keys, self.values, self.key_scales, self.value_scales)
        return tuple(tensor for tensor in held if tensor is not None)

    def poison(self, block_ids: int | Sequence[int] | slice) -> None:
        """Make every slot of the blocks NaN to whoever reads it: the scales where there are some, else the contents."""
        for tensor in self.tensors:
            if tensor.is_floating_point():
                tensor[block_ids] = torch.nan


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Where the rows of a step stand: made once a step for each layer group, read by every layer of it.

    ``positions``: int32 [R], position of each row in its sequence.
    ``slots``: int64 [R], block_id * B + offset where the row's key and value go.
    ``query_starts``: int32 [S + 1], rows of sequence s are query_starts[s] .. query_starts[s + 1].
    ``context_lens``: int32 [S], keys of the sequence once this step has written its own (last position + 1).
    ``block_tables``: int32 [S, widest or more], physical block of each logical block; entries past the end are -1.
    """

    positions: Tensor
    slots: Tensor
    query_starts: Tensor
    context_lens: Tensor
    block_tables: Tensor

    @property
    def num_rows(self) -> int:
        return self.positions.shape[0]


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Rotary angles: ``cos`` and ``sin`` are fp32 [max positions, D / 2]. Halves are rotated (NeoX style)."""

    cos: Tensor
    sin: Tensor


class Linear(Protocol):
    """A weight [out, in] (and bias) in whatever layout its back end chose; made by ``Ops.make_linear``."""

    @property
    def out_features(self) -> int: ...

    @property
    def in_features(self) -> int: ...


class Ops(Protocol):
    """The operations. All results are fp32 [R, ...] tensors; a row's bits never depend on its neighbours.

    Inputs may be overwritten only where the docstring says so.
    """

    name: str

    def make_linear(self, weight: Weight, bias: Tensor | None = None) -> Linear:
        """Lay ``weight`` [out, in] out for this back end. Called once at load; the tensor may be let go after.

        A quantised weight stays quantised, and is multiplied with activations in whole numbers (docs/cpu.md). A plain
        one may stay in 16 bits: the results are those of the same numbers in fp32, bit for bit."""
        ...

    def embed(self, table: Tensor | Linear, token_ids: Tensor, scale: float = 1.0) -> Tensor:
        """Rows of ``table`` [vocab, hidden] for int64 ``token_ids`` [R], times ``scale``. A table may be given as
        the linear that was made of it, so that a tied head needs no second copy."""
        ...

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """RMS norm of each row of ``x`` [R, n] with ``weight`` [n]: x / sqrt(mean(x^2) + eps) * weight."""
        ...

    def norm_heads(self, qkv: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, spec: AttentionSpec) -> Tensor:
        """RMS norm of each query head with ``q_weight`` [D] and each key head with ``k_weight`` [D] inside ``qkv``
        [R, (H + 2G) * D]; values are left as they are. May overwrite ``qkv``."""
        ...

    def linear(self, x: Tensor, weight: Linear) -> Tensor:
        """``x`` [R, in] -> [R, out]: x @ weight.T + bias."""
        ...

    def rotate_and_write_kv(
        self, qkv: Tensor, rope: RopeTable, kv: KVLayer, batch: BatchLayout, spec: AttentionSpec
    ) -> Tensor:
        """Rotate queries and keys of ``qkv`` [R, (H + 2G) * D] (queries, keys, values side by side) at their
        positions, write keys and values to their slots, return the queries [R, H * D]. May overwrite ``qkv``."""
        ...

    def attention(self, q: Tensor, kv: KVLayer, batch: BatchLayout, spec: AttentionSpec) -> Tensor:
        """Paged attention of rotated queries ``q`` [R, H * D] over the cache -> [R, H * D]."""
        ...

    def gate(self, x: Tensor, activation: Activation) -> Tensor:
        """``x`` [R, 2n] -> [R, n]: activation(first half) * second half."""
        ...

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y; may overwrite ``x`` and return it."""
        ...

    def take_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        """Rows ``rows`` (int64) of ``x``: which rows reach the head."""
        ...

    def argmax(self, x: Tensor, count: int) -> Tensor:
        """Index of the greatest of the first ``count`` numbers of each row of ``x`` [R, n]: int64 [R]. The first of
        equals; a NaN before all."""
        ...

    def record(
        self, step: "Step", kv: Sequence[tuple[KVLayer, int]], max_logit_rows: int, timed: Timed = untimed
    ) -> "RecordedStep | None":
        """``step`` made ready to run as a whole, or None if this back end runs it one operation at a time.

        ``kv``: of each layer its memory and the number of its group; ``max_logit_rows``: rows that the head takes at
        once. What an operation is given while ``step`` is recorded is not filled in yet: ``step`` must not look into
        it, and its operations must be those of this object. ``timed``: told of the part "native".
        """
        ...

    def sampling(self, timed: Timed = untimed) -> Sampling | None:
        """How tokens are drawn for a whole batch, or None: then the runner draws row by row.

        ``timed``: see ``record``."""
        ...

    def copy_blocks(self, layers: Sequence[KVLayer], pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, target) in each layer; no block is both a source and a target."""
        ...


class Step(Protocol):
    """A model's step, said in operations."""

    def forward(self, token_ids: Tensor, kv: Sequence[tuple[KVLayer, BatchLayout]], head_rows: Tensor) -> Tensor:
        """Hidden states fp32 [N, hidden] of ``head_rows`` (int64 [N]). ``token_ids``: int64 [R]; ``kv``: of each layer
        its memory and the layout of its group."""
        ...

    def head(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Logits fp32 [n, vocab] of some rows of hidden states, and the best token of each, int64 [n]."""
        ...


class RecordedStep(Protocol):
    """A step that a back end has recorded."""

    def run(
        self, token_ids: Tensor, layouts: Sequence[BatchLayout], head_rows: Tensor, num_hidden: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Run forward and head; inputs as in ``Step.forward``, but one layout a group. The very ``layouts`` and
        ``head_rows`` of the step before may be given again, with other numbers in the layouts' memory. Gives what
        ``head`` returns for a few rows at a time, in order, each valid until the next one is asked for. The last
        ``num_hidden`` of ``head_rows`` do not reach the head: ``hidden`` has them."""
        ...

    def hidden(self, count: int) -> Tensor:
        """What ``forward`` gave for the last ``count`` of ``head_rows`` of the step that ran last, once all that
        ``run`` gives has been taken; valid until the next step."""
        ...


def allocate_kv(num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> KVLayer:
    """KV memory of one layer slot, zeroed. ``dtype``: float32, float16, or int8 (scales are added).

    Mapped, not written: the system gives a page out when it is first touched, so a large pool costs neither time at
    start nor memory before it is used, but for a little (runner/page_ahead.py). Page-aligned. Private to the process:
    the system gives huge pages (far fewer misses when blocks are read) to private memory, and by default not to shared.
    """
    num_scales = num_blocks * num_kv_heads * block_size
    keys, values = (_map_zeros(num_scales * head_dim, dtype) for _ in range(2))
    scales: list[Tensor | None] = [None, None]
    if dtype == torch.int8:
        scales = [_map_zeros(num_scales, SCALE_DTYPE).view(num_blocks, num_kv_heads, block_size) for _ in range(2)]
    return KVLayer(
        keys.view(num_blocks, num_kv_heads, head_dim, block_size),
        values.view(num_blocks, num_kv_heads, block_size, head_dim),
        *scales,
    )


def _map_zeros(count: int, dtype: torch.dtype) -> Tensor:
    memory = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE)
    with contextlib.suppress(OSError):  # a system built without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype)
