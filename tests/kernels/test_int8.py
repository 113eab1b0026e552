"""Keys and values in 8 bits: what is written, to the bit, and what a scale says of numbers that 8 bits cannot hold."""

import math

import pytest
import torch
from torch import Tensor

from octavo.kernels.interface import AttentionSpec, KVLayer, Ops, allocate_kv
from octavo.kernels.kinds import KV_ITEM_BYTES, kv_head_bytes
from tests.kernels.cases import logical_sequence, place, quantized, random_rows, rope_table


def slot_of(kv: KVLayer, slot: int) -> list[Tensor]:
    """Views of what memory in 8 bits holds of one slot: key and value [G, D], their scales [G]."""
    assert kv.key_scales is not None
    assert kv.value_scales is not None
    block, offset = divmod(slot, kv.block_size)
    return [
        kv.keys[block, :, :, offset],
        kv.values[block, :, offset],
        kv.key_scales[block, :, offset],
        kv.value_scales[block, :, offset],
    ]


@pytest.mark.parametrize("block_size", [4, 16, 24])
@pytest.mark.parametrize("head_dim", [16, 72])
def test_what_is_written_is_what_fp32_memory_would_hold_rounded(ops: Ops, block_size: int, head_dim: int) -> None:
    spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=head_dim, scale=1.0)
    sequences = [logical_sequence(spec, 21, 5, seed=1), logical_sequence(spec, 9, 1, seed=2)]
    qkv = random_rows(6, 8 * head_dim, seed=3)
    qkv[1] *= 1e-38  # the scales, or the numbers themselves, are below the smallest normal number of fp32
    qkv[2] *= 1e-42
    exact, rounded = (place(sequences, spec, block_size, dtype) for dtype in (torch.float32, torch.int8))
    expected = KVLayer(*(tensor.clone() for tensor in rounded.kv.tensors))
    q = [
        ops.rotate_and_write_kv(qkv.clone(), rope_table(32, head_dim), paged.kv, paged.batch, spec)
        for paged in (exact, rounded)
    ]
    for slot in rounded.batch.slots.tolist():
        block, offset = divmod(slot, block_size)
        key, key_scale = quantized(exact.kv.keys[block, :, :, offset])
        value, value_scale = quantized(exact.kv.values[block, :, offset])
        for held, wanted in zip(slot_of(expected, slot), (key, value, key_scale, value_scale), strict=True):
            held[:] = wanted
    assert torch.equal(*q)
    torch.testing.assert_close(rounded.kv.tensors, expected.tensors, rtol=0, atol=0, equal_nan=True)


def attend_to(ops: Ops, *value: float) -> tuple[list[int], float, list[float]]:
    """Writes one token with a key of zeros and a value of four numbers: what is held of the value, its scale, and what
    attention makes of it."""
    spec = AttentionSpec(num_heads=1, num_kv_heads=1, head_dim=4, scale=1.0)
    paged = place([logical_sequence(spec, 1, 1, seed=0)], spec, 16, torch.int8)
    qkv = torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, *value]])
    q = ops.rotate_and_write_kv(qkv, rope_table(4, 4), paged.kv, paged.batch, spec)
    key, held, key_scale, scale = slot_of(paged.kv, int(paged.batch.slots[0]))
    assert not key.any()
    assert not key_scale.any()
    return held[0].tolist(), float(scale), ops.attention(q, paged.kv, paged.batch, spec)[0].tolist()


def test_halves_go_to_the_even_neighbour_and_the_greatest_magnitude_to_127(ops: Ops) -> None:
    assert attend_to(ops, -127.0, 0.5, 1.5, -2.5) == ([-127, 0, 2, -2], 1.0, [-127.0, 0.0, 2.0, -2.0])


def test_zeros_stay_zeros(ops: Ops) -> None:
    assert attend_to(ops, 0.0, -0.0, 0.0, 0.0) == ([0, 0, 0, 0], 0.0, [0.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_stays_visible(ops: Ops, bad: float) -> None:
    held, scale, result = attend_to(ops, 1.0, bad, 2.0, 3.0)
    assert held == [0, 0, 0, 0]
    assert math.isnan(scale)
    assert all(map(math.isnan, result))


def test_large_numbers_do_not_overflow(ops: Ops) -> None:
    held, scale, result = attend_to(ops, 2e38, -2e38, 0.0, 0.5e38)
    assert held == [127, -127, 0, 32]
    assert scale == pytest.approx(2e38 / 127)
    assert result == pytest.approx([2e38, -2e38, 0.0, 32 / 127 * 2e38])


@pytest.mark.parametrize(("dtype", "head_bytes"), [("float32", 4 * 64), ("float16", 2 * 64), ("int8", 64 + 4)])
def test_bytes_of_a_head_are_those_that_memory_takes(dtype: str, head_bytes: int) -> None:
    assert dtype in KV_ITEM_BYTES
    assert kv_head_bytes(64, dtype) == head_bytes
    kv = allocate_kv(num_blocks=3, block_size=8, num_kv_heads=2, head_dim=64, dtype=getattr(torch, dtype))
    assert sum(tensor.nbytes for tensor in kv.tensors) == 3 * 8 * 2 * 2 * head_bytes


def test_poison_leaves_other_blocks_alone(kv_dtype: torch.dtype) -> None:
    kv = allocate_kv(num_blocks=4, block_size=2, num_kv_heads=1, head_dim=8, dtype=kv_dtype)
    kv.poison([1, 2])
    [*_, values] = filter(torch.is_floating_point, kv.tensors)
    assert values.flatten(1).isnan().all(dim=1).tolist() == [False, True, True, False]
    assert values.flatten(1).isnan().any(dim=1).tolist() == [False, True, True, False]
