"""Keys and values in fp16: what is written, to the bit, and that reading is exact."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.kernels.interface import AttentionSpec, KVLayer, Ops
from tests.kernels.cases import Paged, logical_sequence, place, random_rows, rope_table

SPEC = AttentionSpec(num_heads=1, num_kv_heads=1, head_dim=64, scale=1.0)


def written(ops: Ops, values: Tensor) -> Tensor:
    """What fp16 memory holds of ``values`` [n, 64], one token each."""
    count = len(values)
    paged = place([logical_sequence(SPEC, count, count, seed=0)], SPEC, 16, torch.float16)
    qkv = torch.cat([torch.zeros(count, 128), values], dim=1)
    ops.rotate_and_write_kv(qkv, rope_table(count, 64), paged.kv, paged.batch, SPEC)
    blocks, offsets = paged.batch.slots // 16, paged.batch.slots % 16
    return paged.kv.values[blocks, 0, offsets]


def every_half_and_between() -> Tensor:
    """Each finite fp16, the midpoint to the next one, and the fp32 beside that midpoint on either side."""
    halves = torch.arange(0x7C00, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    midpoints = (halves[:-1] + halves[1:]) / 2
    beside = [torch.nextafter(midpoints, torch.tensor(way)) for way in (-math.inf, math.inf)]
    edges = torch.tensor([65519.996, 65520.0, 65536.0, 3e38, math.inf, 2**-25, 2**-149, 0.0])
    positive = torch.cat([halves, midpoints, *beside, edges])
    numbers = torch.cat([positive, -positive])
    return torch.cat([numbers, torch.zeros(-len(numbers) % 64)]).view(-1, 64)


def test_rounding_is_that_of_ieee_754(ops: Ops) -> None:
    numbers = every_half_and_between()
    with np.errstate(over="ignore"):
        expected = numbers.numpy().astype(np.float16)
    np.testing.assert_array_equal(written(ops, numbers).numpy().view(np.uint16), expected.view(np.uint16))


def test_what_is_no_number_stays_none(ops: Ops) -> None:
    bits = torch.tensor([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x7F801000], dtype=torch.int32)
    numbers = bits.view(torch.float32).repeat(16)[None]
    assert written(ops, torch.cat([numbers, -numbers])).isnan().all()


def in_fp32(paged: Paged) -> KVLayer:
    """Memory in fp32 that holds the same numbers."""
    return KVLayer(paged.kv.keys.float(), paged.kv.values.float())


@pytest.mark.parametrize("head_dim", [64, 72, 80])
@pytest.mark.parametrize("block_size", [4, 16, 32])
@pytest.mark.parametrize(("context", "queries"), [(45, 1), (45, 13), (45, 15)])
def test_attention_has_the_bits_of_fp32_memory_with_the_same_numbers(
    ops: Ops, head_dim: int, block_size: int, context: int, queries: int
) -> None:
    spec = AttentionSpec(6, 2, head_dim, scale=0.2, window=40)
    sequence = logical_sequence(spec, context, queries, seed=0)
    sequence.keys[:8] *= 1e-6  # below the smallest normal number of fp16
    paged = place([sequence], spec, block_size, torch.float16)
    q = random_rows(queries, 6 * head_dim)
    expected = ops.attention(q, in_fp32(paged), paged.batch, spec)
    assert torch.equal(ops.attention(q, paged.kv, paged.batch, spec), expected)


def test_a_key_too_large_for_fp16_shows(ops: Ops) -> None:
    paged = place([logical_sequence(SPEC, 1, 1, seed=0)], SPEC, 16, torch.float16)
    qkv = torch.cat([torch.ones(1, 64), torch.full((1, 64), 1e5), torch.ones(1, 64)], dim=1)
    q = ops.rotate_and_write_kv(qkv, rope_table(4, 64), paged.kv, paged.batch, SPEC)
    assert ops.attention(q, paged.kv, paged.batch, SPEC).isnan().all()
