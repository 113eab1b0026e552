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
    for isa in native.ISAS:
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


KV_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "int8": torch.int8}


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

    def as_held(self, dtype: torch.dtype) -> "LogicalSequence":
        """The sequence as memory of ``dtype`` holds it."""
        if dtype != torch.int8:
            return LogicalSequence(self.keys.to(dtype), self.values.to(dtype), self.num_queries)
        keys, values = ((scale[..., None].double() * held) for held, scale in map(quantized, (self.keys, self.values)))
        return LogicalSequence(keys, values, self.num_queries)


def quantized(heads: Tensor) -> tuple[Tensor, Tensor]:
    """Heads fp32 [..., D] as the contract wants them in 8 bits: int8 [..., D] and scales fp32 [...]."""
    x = heads.numpy()
    greatest = np.abs(x).max(axis=-1, keepdims=True)
    scale = np.where(np.isfinite(greatest), greatest / np.float32(127), np.float32(np.nan))
    with np.errstate(invalid="ignore", divide="ignore"):
        steps = np.where(scale > 0, np.clip(np.rint(x / scale), -127, 127), 0)
    return torch.from_numpy(steps.astype(np.int8)), torch.from_numpy(scale[..., 0])


def logical_sequence(spec: AttentionSpec, context_len: int, num_queries: int, seed: int) -> LogicalSequence:
    shape = (context_len, spec.num_kv_heads, spec.head_dim)
    return LogicalSequence(random_rows(*shape, seed=2 * seed), random_rows(*shape, seed=2 * seed + 1), num_queries)


@dataclass
class Paged:
    kv: KVLayer
    batch: BatchLayout


def poisoned_kv(num_blocks: int, block_size: int, spec: AttentionSpec, dtype: torch.dtype) -> KVLayer:
    """Memory whose every slot is NaN; numbers of 8 bits are such as no token has."""
    kv = allocate_kv(num_blocks, block_size, spec.num_kv_heads, spec.head_dim, dtype)
    kv.poison(slice(None))
    if dtype == torch.int8:
        kv.keys.fill_(-128)
        kv.values.fill_(-128)
    return kv


def _hold(kv: KVLayer, block: int, keys: Tensor, values: Tensor) -> None:
    """Put keys and values fp32 [T, G, D] into the first slots of a block."""
    count = len(keys)
    if kv.key_scales is not None and kv.value_scales is not None:
        (keys, key_scales), (values, value_scales) = quantized(keys), quantized(values)
        kv.key_scales[block, :, :count] = key_scales.T
        kv.value_scales[block, :, :count] = value_scales.T
    kv.keys[block, :, :, :count] = keys.permute(1, 2, 0)
    kv.values[block, :, :count] = values.transpose(0, 1)


def place(
    sequences: Sequence[LogicalSequence],
    spec: AttentionSpec,
    block_size: int,
    dtype: torch.dtype = torch.float32,
    *,
    seed: int = 0,
    shared_blocks: int = 0,
) -> Paged:
    """Lay the sequences out in shuffled blocks. Every slot that holds no token is NaN; blocks wholly behind the window
    of a sequence's first query have left its table; the first ``shared_blocks`` blocks are those of sequence 0."""
    counts = [-(-s.context_len // block_size) for s in sequences]
    num_blocks = sum(counts) + 3
    kv = poisoned_kv(num_blocks, block_size, spec, dtype)
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
            _hold(kv, block, sequence.keys[begin:end], sequence.values[begin:end])
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
