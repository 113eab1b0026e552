"""Paged attention against float64 over the logical sequence, under the addressing contract's adversary."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from octavo.core.errors import ConfigurationError
from octavo.kernels.interface import AttentionSpec, KVLayer, Ops
from tests.kernels.cases import LogicalSequence, attention_oracle, double, logical_sequence, place, random_rows

# docs/kernel-contract.md: on inputs of unit scale, given what the memory holds.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-5, torch.int8: 2e-5}

# A fresh prompt, a chunk of a longer one, decode rows at and around a block's edge, the first token of a sequence.
MIXED = [(19, 19), (45, 13), (33, 1), (32, 1), (31, 1), (1, 1)]


def mixed(spec: AttentionSpec) -> list[LogicalSequence]:
    return [logical_sequence(spec, context, queries, seed=i) for i, (context, queries) in enumerate(MIXED)]


def check(
    ops: Ops,
    sequences: list[LogicalSequence],
    spec: AttentionSpec,
    block_size: int,
    dtype: torch.dtype,
    shared: int = 0,
) -> None:
    paged = place(sequences, spec, block_size, dtype, seed=block_size, shared_blocks=shared)
    q = random_rows(paged.batch.num_rows, spec.num_heads * spec.head_dim, seed=99)
    result = double(ops.attention(q, paged.kv, paged.batch, spec))
    held = [sequence.as_held(dtype) for sequence in sequences]
    np.testing.assert_allclose(result, attention_oracle(q, held, spec), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("head_dim", [8, 16, 32, 64, 80, 96, 100, 128, 256])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(2, 2), (6, 2), (4, 1)])
def test_head_layouts(ops: Ops, kv_dtype: torch.dtype, head_dim: int, num_heads: int, num_kv_heads: int) -> None:
    spec = AttentionSpec(num_heads, num_kv_heads, head_dim, scale=head_dim**-0.5)
    check(ops, mixed(spec), spec, 16, kv_dtype)


@pytest.mark.parametrize("block_size", [1, 4, 16, 24, 32])
@pytest.mark.parametrize("window", [None, 1, 7, 16, 40])
@pytest.mark.parametrize("soft_cap", [None, 5.0])
def test_masks(ops: Ops, kv_dtype: torch.dtype, block_size: int, window: int | None, soft_cap: float | None) -> None:
    spec = AttentionSpec(6, 2, 32, scale=0.3, window=window, soft_cap=soft_cap)
    check(ops, mixed(spec), spec, block_size, kv_dtype)


@pytest.mark.parametrize("block_size", [4, 16])
def test_shared_blocks(ops: Ops, kv_dtype: torch.dtype, block_size: int) -> None:
    spec = AttentionSpec(4, 2, 16, scale=0.25)
    first = logical_sequence(spec, 50, 1, seed=1)
    second = logical_sequence(spec, 60, 12, seed=2)
    second.keys[:48], second.values[:48] = first.keys[:48], first.values[:48]
    check(ops, [first, second], spec, block_size, kv_dtype, shared=48 // block_size)


def test_long_context(ops: Ops, kv_dtype: torch.dtype) -> None:
    spec = AttentionSpec(3, 1, 64, scale=0.125)
    sequences = [logical_sequence(spec, 3000, 2, seed=0), logical_sequence(spec, 700, 30, seed=1)]
    check(ops, sequences, spec, 16, kv_dtype)


def test_scores_far_apart_do_not_overflow(ops: Ops, kv_dtype: torch.dtype) -> None:
    spec = AttentionSpec(2, 1, 16, scale=40.0)
    check(ops, [logical_sequence(spec, 37, 37, seed=0)], spec, 16, kv_dtype)


def test_sequences_without_rows_are_passed_over(ops: Ops, kv_dtype: torch.dtype) -> None:
    spec = AttentionSpec(2, 1, 16, scale=0.25)
    sequences = [logical_sequence(spec, 20, n, seed=n) for n in (1, 0, 3)]
    check(ops, sequences, spec, 16, kv_dtype)


def test_poison_that_a_query_does_see_is_not_hidden(ops: Ops, kv_dtype: torch.dtype) -> None:
    spec = AttentionSpec(2, 1, 16, scale=0.25)
    sequence = logical_sequence(spec, 20, 1, seed=0)
    paged = place([sequence], spec, 16, kv_dtype)
    block = int(paged.batch.block_tables[0, 0])
    for memory in filter(torch.is_floating_point, paged.kv.tensors):
        held = memory[block].clone()
        memory[block].fill_(torch.nan)
        assert ops.attention(random_rows(1, 32), paged.kv, paged.batch, spec).isnan().all()
        memory[block] = held


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("entry", [-1, 10_000])
def test_a_table_without_the_block_is_refused_by_the_native_kernels(
    cpu_ops: Ops, kv_dtype: torch.dtype, block_size: int, entry: int
) -> None:
    spec = AttentionSpec(2, 1, 16, scale=0.25)
    paged = place([logical_sequence(spec, 40, 1, seed=0)], spec, block_size, kv_dtype)
    paged.batch.block_tables[0, 1] = entry
    with pytest.raises(IndexError, match="block table"):
        cpu_ops.attention(random_rows(1, 32), paged.kv, paged.batch, spec)


@pytest.mark.parametrize("window", [None, 9])
def test_poison_in_a_later_or_an_outlived_token_does_not_reach_the_rows_that_do_not_see_it(
    ops: Ops, kv_dtype: torch.dtype, window: int | None
) -> None:
    spec = AttentionSpec(6, 2, 16, scale=0.25, window=window)
    sequence = logical_sequence(spec, 40, 30, seed=0)
    q = random_rows(30, 96)
    clean = place([sequence], spec, 16, kv_dtype)
    expected = ops.attention(q, clean.kv, clean.batch, spec)
    sequence.keys[25], sequence.values[25] = torch.nan, torch.nan
    poisoned = place([sequence], spec, 16, kv_dtype)
    result = ops.attention(q, poisoned.kv, poisoned.batch, spec)
    sees = torch.tensor([p >= 25 and (window is None or p < 25 + window) for p in sequence.positions])
    assert result[sees].isnan().all()
    assert torch.equal(result[~sees], expected[~sees])


def test_tables_may_be_part_of_a_wider_tensor(ops: Ops) -> None:
    spec = AttentionSpec(2, 1, 16, scale=0.25)
    paged = place([logical_sequence(spec, 40, 1, seed=0), logical_sequence(spec, 20, 2, seed=1)], spec, 16)
    q = random_rows(3, 32)
    wide = torch.full((4, 50), -1, dtype=torch.int32)
    width = paged.batch.block_tables.shape[1]
    wide[:2, :width] = paged.batch.block_tables
    part = replace(paged.batch, block_tables=wide[:2, :width])
    assert torch.equal(ops.attention(q, paged.kv, part, spec), ops.attention(q, paged.kv, paged.batch, spec))


def test_a_layout_of_other_integer_types_is_refused_by_the_native_kernels(cpu_ops: Ops) -> None:
    spec = AttentionSpec(2, 1, 16, scale=0.25)
    paged = place([logical_sequence(spec, 4, 1, seed=0)], spec, 16)
    wrong = replace(paged.batch, positions=paged.batch.positions.long())
    with pytest.raises(TypeError, match="batch layout"):
        cpu_ops.attention(random_rows(1, 32), paged.kv, wrong, spec)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_memory_of_another_type_or_without_its_scales_is_refused_by_the_native_kernels(
    cpu_ops: Ops, dtype: torch.dtype
) -> None:
    spec = AttentionSpec(2, 1, 16, scale=0.25)
    paged = place([logical_sequence(spec, 4, 1, seed=0)], spec, 16)
    bare = KVLayer(paged.kv.keys.nan_to_num().to(dtype), paged.kv.values.nan_to_num().to(dtype))
    with pytest.raises(ConfigurationError, match="float32, float16, or in int8 with scales"):
        cpu_ops.attention(random_rows(1, 32), bare, paged.batch, spec)
