"""Long contexts: attention takes slices of 256 positions by themselves and merges them, whoever worked on them."""

from collections.abc import Callable, Iterator
from ctypes import byref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.kernels import native
from octavo.kernels.cpu import CpuOps
from octavo.kernels.interface import AttentionSpec, BatchLayout, Ops
from octavo.kernels.native_batch import native_batch
from tests.kernels.cases import attention_oracle, double, logical_sequence, place, random_rows

# docs/kernel-contract.md: on inputs of unit scale, given what the memory holds.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-5, torch.int8: 2e-5}
SPEC = AttentionSpec(6, 2, 64, scale=0.125)
AROUND_SLICES = [255, 256, 257, 511, 513, 4096]


@pytest.fixture
def threads_of(cpu_ops: Ops) -> Iterator[Callable[[int], None]]:
    assert isinstance(cpu_ops, CpuOps)
    before = cpu_ops.num_threads
    yield cpu_ops.set_num_threads
    cpu_ops.set_num_threads(before)


@pytest.mark.parametrize("context", AROUND_SLICES)
@pytest.mark.parametrize(
    ("window", "soft_cap"),
    [(None, None), (1, None), (256, None), (257, None), (300, 5.0)],
)
def test_contexts_around_slices_against_float64(
    cpu_ops: Ops, kv_dtype: torch.dtype, context: int, window: int | None, soft_cap: float | None
) -> None:
    spec = replace(SPEC, window=window, soft_cap=soft_cap)
    sequences = [logical_sequence(spec, context, 1, seed=1), logical_sequence(spec, context, 3, seed=2)]
    paged = place(sequences, spec, 16, kv_dtype)
    q = random_rows(4, spec.num_heads * spec.head_dim, seed=9)
    result = double(cpu_ops.attention(q, paged.kv, paged.batch, spec))
    expected = attention_oracle(q, [s.as_held(kv_dtype) for s in sequences], spec)
    np.testing.assert_allclose(result, expected, rtol=TOLERANCE[kv_dtype], atol=TOLERANCE[kv_dtype])


@pytest.mark.parametrize(
    ("block_size", "head_dim", "window"), [(16, 64, None), (16, 64, 300), (6, 64, 300), (32, 100, None), (16, 256, 300)]
)
def test_threads_batches_and_chunks_change_no_bits_of_long_contexts(
    cpu_ops: Ops,
    kv_dtype: torch.dtype,
    threads_of: Callable[[int], None],
    block_size: int,
    head_dim: int,
    window: int | None,
) -> None:
    spec = AttentionSpec(6, 2, head_dim, scale=0.1, window=window)
    lengths = [(1300, 1), (257, 1), (700, 20), (40, 40), (900, 5), (2000, 2)]
    sequences = [logical_sequence(spec, context, queries, seed=i) for i, (context, queries) in enumerate(lengths)]
    q = random_rows(sum(queries for _, queries in lengths), 6 * head_dim)

    def attend(first: int, end: int) -> Tensor:
        paged = place(sequences[first:end], spec, block_size, kv_dtype, seed=first)
        row = sum(s.num_queries for s in sequences[:first])
        return cpu_ops.attention(q[row : row + paged.batch.num_rows], paged.kv, paged.batch, spec)

    threads_of(1)
    together = attend(0, len(sequences))
    for count in (1, 2, 4):
        threads_of(count)
        assert torch.equal(attend(0, len(sequences)), together)
        assert torch.equal(torch.cat([attend(i, i + 1) for i in range(len(sequences))]), together)


@pytest.mark.parametrize("window", [None, 290])
def test_a_chunk_over_slices_has_the_bits_of_its_rows_one_by_one(
    cpu_ops: Ops, kv_dtype: torch.dtype, window: int | None
) -> None:
    spec = replace(SPEC, window=window)
    whole = logical_sequence(spec, 600, 400, seed=0)
    q = random_rows(400, 6 * 64)
    paged = place([whole], spec, 16, kv_dtype)
    together = cpu_ops.attention(q, paged.kv, paged.batch, spec)
    for row in (0, 55, 56, 57, 100, 311, 312, 399):
        assert torch.equal(
            cpu_ops.attention(q[row : row + 1], paged.kv, one_row(paged.batch, row), spec)[0], together[row]
        )


def one_row(batch: BatchLayout, row: int) -> BatchLayout:
    """Of a batch of one sequence."""
    return BatchLayout(
        positions=batch.positions[row : row + 1],
        slots=batch.slots[row : row + 1],
        query_starts=torch.tensor([0, 1], dtype=torch.int32),
        context_lens=batch.positions[row : row + 1] + 1,
        block_tables=batch.block_tables,
    )


@pytest.mark.parametrize("poisoned", [10, 300, 699])
def test_poison_in_any_slice_makes_the_row_nan(cpu_ops: Ops, kv_dtype: torch.dtype, poisoned: int) -> None:
    sequence = logical_sequence(SPEC, 700, 1, seed=0)
    sequence.keys[poisoned] = torch.nan
    paged = place([sequence], SPEC, 16, kv_dtype)
    assert cpu_ops.attention(random_rows(1, 6 * 64), paged.kv, paged.batch, SPEC).isnan().all()


@pytest.mark.parametrize("block_size", [16, 24])
def test_without_tables_the_kernel_gives_the_same_bits(cpu_ops: Ops, kv_dtype: torch.dtype, block_size: int) -> None:
    sequences = [logical_sequence(SPEC, 480, 1, seed=i) for i in range(3)]
    paged = place(sequences, SPEC, block_size, kv_dtype)
    tables = paged.batch.block_tables[:, : 480 // block_size].contiguous()
    q = random_rows(3, 6 * 64)
    expected = cpu_ops.attention(q, paged.kv, paged.batch, SPEC)
    for held in paged.kv.tensors:
        held[: tables.numel()] = held[tables.flatten().long()]
    batch = native_batch(paged.kv, replace(paged.batch, block_tables=tables))
    batch.block_tables = None
    shape = native.AttentionShape(6, 2, 64, block_size, tables.numel(), 0, SPEC.scale, 0.0)
    out = torch.empty_like(q)
    native.open_library().octavo_attention(q.data_ptr(), byref(batch), byref(shape), out.data_ptr())
    assert torch.equal(out, expected)
