"""Paged batches made by an adversary, the back ends to hold to the contract, and float64 oracles."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.core.errors import ConfigurationError
from octavo.kernels import native
from octavo.kernels.cpu import CpuOps
from octavo.kernels.interface import AttentionSpec, BatchLayout, KVLayer, Ops, RopeTable, allocate_kv
from octavo.kernels.reference import ReferenceOps

Float64 = npt.NDArray[np.float64]


def _native_isas() -> list[str]:
    """Instruction sets that this machine has, of the native library (tests/kernels/test_registry.py: it was built)."""
    try:
        library = native.load()
    except native.NativeLibraryMissingError:
        return []
    available = []
    for isa in ("avx2", "portable"):
        try:
            native.set_isa(library, isa)
        except ConfigurationError:
            continue
        available.append(isa)
    native.set_isa(library, None)
    return available


BACKENDS = ["reference", *(f"cpu-{isa}" for isa in _native_isas())]


def make_ops(backend: str) -> Ops:
    """The back end; the native one takes its instruction set from the process, so use one at a time."""
    if backend == "reference":
        return ReferenceOps()
    ops = CpuOps()
    native.set_isa(native.load(), backend.removeprefix("cpu-"))
    assert backend == f"cpu-{ops.isa}"
    return ops


def random_rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def double(x: Tensor) -> Float64:
    return x.double().numpy()


def rope_table(num_positions: int, head_dim: int) -> RopeTable:
    frequencies = 10000.0 ** (-torch.arange(0, head_dim, 2).double() / head_dim)
    angles = torch.arange(num_positions).double()[:, None] * frequencies
    return RopeTable(cos=angles.cos().float(), sin=angles.sin().float())


@dataclass
class LogicalSequence:
    """What a sequence's cache should hold, without any paging: rotated keys and values [T, G, D]."""

    keys: Tensor
    values: Tensor
    num_queries: int  # the last rows of the context are computed in this step

    @property
    def context_len(self) -> int:
        return self.keys.shape[0]

    @property
    def positions(self) -> range:
        return range(self.context_len - self.num_queries, self.context_len)


def logical_sequence(spec: AttentionSpec, context_len: int, num_queries: int, seed: int) -> LogicalSequence:
    shape = (context_len, spec.num_kv_heads, spec.head_dim)
    return LogicalSequence(random_rows(*shape, seed=2 * seed), random_rows(*shape, seed=2 * seed + 1), num_queries)


@dataclass
class Paged:
    kv: KVLayer
    batch: BatchLayout


def place(
    sequences: Sequence[LogicalSequence],
    spec: AttentionSpec,
    block_size: int,
    *,
    seed: int = 0,
    shared_blocks: int = 0,
) -> Paged:
    """Lay the sequences out in shuffled blocks. Every slot that holds no token is NaN; blocks wholly behind the window
    of a sequence's first query have left its table; the first ``shared_blocks`` blocks are those of sequence 0."""
    counts = [-(-s.context_len // block_size) for s in sequences]
    num_blocks = sum(counts) + 3
    kv = allocate_kv(num_blocks, block_size, spec.num_kv_heads, spec.head_dim, torch.float32)
    kv.keys.fill_(torch.nan)
    kv.values.fill_(torch.nan)
    free = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)).tolist()
    tables = torch.full((len(sequences), max(counts) + 1), -1, dtype=torch.int32)
    slots: list[int] = []
    for i, sequence in enumerate(sequences):
        first_seen = 0 if spec.window is None else max(0, sequence.positions[0] - spec.window + 1)
        for index in range(counts[i]):
            begin, end = index * block_size, min((index + 1) * block_size, sequence.context_len)
            if end <= first_seen:
                continue
            block = int(tables[0, index]) if i > 0 and index < shared_blocks else free.pop()
            tables[i, index] = block
            kv.keys[block, :, :, : end - begin] = sequence.keys[begin:end].permute(1, 2, 0)
            kv.values[block, :, : end - begin] = sequence.values[begin:end].transpose(0, 1)
        slots += [int(tables[i, p // block_size]) * block_size + p % block_size for p in sequence.positions]
    starts = np.cumsum([0, *(s.num_queries for s in sequences)])
    batch = BatchLayout(
        positions=torch.tensor([p for s in sequences for p in s.positions], dtype=torch.int32),
        slots=torch.tensor(slots, dtype=torch.int64),
        query_starts=torch.tensor(starts, dtype=torch.int32),
        context_lens=torch.tensor([s.context_len for s in sequences], dtype=torch.int32),
        block_tables=tables,
    )
    return Paged(kv, batch)


def attention_oracle(q: Tensor, sequences: Sequence[LogicalSequence], spec: AttentionSpec) -> Float64:
    """Attention in float64 over the logical sequences: [R, H * D]."""
    rows = iter(double(q).reshape(-1, spec.num_heads, spec.head_dim))
    group = spec.num_heads // spec.num_kv_heads
    out = []
    for sequence in sequences:
        keys = double(sequence.keys).repeat(group, axis=1)  # [T, H, D]
        values = double(sequence.values).repeat(group, axis=1)
        for position in sequence.positions:
            seen = slice(0 if spec.window is None else max(0, position - spec.window + 1), position + 1)
            scores = np.einsum("hd,thd->ht", next(rows), keys[seen]) * spec.scale
            if spec.soft_cap is not None:
                scores = spec.soft_cap * np.tanh(scores / spec.soft_cap)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            out.append(np.einsum("ht,thd->hd", weights, values[seen]).ravel())
    return np.array(out)
