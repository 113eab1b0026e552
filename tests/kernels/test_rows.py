"""Every operation but attention against float64, on each back end, within the contract's tolerance."""

import numpy as np
import pytest
import torch

from octavo.kernels.interface import Activation, AttentionSpec, Ops
from tests.kernels.cases import double, logical_sequence, place, random_rows, rope_table

TOLERANCE = 1e-5  # docs/kernel-contract.md: fp32, on inputs of unit scale


@pytest.mark.parametrize("num_rows", [1, 2, 5, 7, 33])
@pytest.mark.parametrize(("out_features", "in_features"), [(1, 1), (16, 16), (17, 33), (200, 100), (20, 2500)])
def test_linear(ops: Ops, num_rows: int, out_features: int, in_features: int) -> None:
    x, weight = random_rows(num_rows, in_features, seed=1), random_rows(out_features, in_features, seed=2)
    bias = random_rows(out_features, seed=3)
    magnitude = np.abs(double(x)) @ np.abs(double(weight)).T + 1
    plain = double(ops.linear(x, ops.make_linear(weight)))
    assert np.all(np.abs(plain - double(x) @ double(weight).T) <= TOLERANCE * magnitude)
    biased = double(ops.linear(x, ops.make_linear(weight, bias)))
    assert np.all(np.abs(biased - double(x) @ double(weight).T - double(bias)) <= TOLERANCE * magnitude)


def test_linear_reports_its_shape_and_keeps_no_hold_on_the_weight(ops: Ops) -> None:
    weight = random_rows(24, 40)
    x = random_rows(2, 40, seed=1)
    linear = ops.make_linear(weight.to(torch.bfloat16))
    assert (linear.out_features, linear.in_features) == (24, 40)
    expected = double(x) @ double(weight.to(torch.bfloat16)).T
    np.testing.assert_allclose(double(ops.linear(x, linear)), expected, rtol=TOLERANCE, atol=1e-4)


def test_linear_takes_rows_that_are_not_contiguous(ops: Ops) -> None:
    x = random_rows(5, 80, seed=1)[:, ::2]
    linear = ops.make_linear(random_rows(20, 40))
    assert torch.equal(ops.linear(x, linear), ops.linear(x.contiguous(), linear))


def test_embed_and_take_rows_copy_exactly(ops: Ops) -> None:
    table = random_rows(50, 37)
    ids = torch.tensor([49, 0, 7, 7])
    assert torch.equal(ops.embed(table, ids), table[ids])
    assert torch.equal(ops.embed(table, ids, 1.7), table[ids] * 1.7)
    assert torch.equal(ops.take_rows(table, ids), table[ids])
    assert ops.take_rows(table, torch.tensor([], dtype=torch.int64)).shape == (0, 37)


@pytest.mark.parametrize("bad", [-1, 50])
def test_rows_that_do_not_exist_are_refused_by_the_native_kernels(cpu_ops: Ops, bad: int) -> None:
    with pytest.raises(IndexError, match=r"0 \.\. 49"):
        cpu_ops.embed(random_rows(50, 8), torch.tensor([1, bad]))


@pytest.mark.parametrize("width", [1, 16, 37, 576])
def test_norm(ops: Ops, width: int) -> None:
    x, weight = 3 * random_rows(4, width, seed=1), random_rows(width, seed=2)
    exact = double(x) / np.sqrt((double(x) ** 2).mean(axis=1, keepdims=True) + 1e-5) * double(weight)
    np.testing.assert_allclose(double(ops.norm(x, weight, 1e-5)), exact, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("head_dim", [8, 16, 64, 80])
def test_norm_heads(ops: Ops, head_dim: int) -> None:
    spec = AttentionSpec(num_heads=6, num_kv_heads=2, head_dim=head_dim, scale=1.0)
    qkv, q_weight, k_weight = (
        random_rows(3, 10 * head_dim),
        random_rows(head_dim, seed=1),
        random_rows(head_dim, seed=2),
    )
    heads = double(qkv).reshape(3, 10, head_dim)
    normed = heads / np.sqrt((heads**2).mean(axis=2, keepdims=True) + 1e-6)
    exact = np.concatenate(
        [normed[:, :6] * double(q_weight), normed[:, 6:8] * double(k_weight), heads[:, 8:]], axis=1
    ).reshape(3, -1)
    result = double(ops.norm_heads(qkv.clone(), q_weight, k_weight, 1e-6, spec))
    np.testing.assert_allclose(result, exact, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("width", [1, 16, 50])
def test_gate(ops: Ops, activation: Activation, width: int) -> None:
    x = 4 * random_rows(6, 2 * width)
    x[0, 0], x[1, 0], x[2, 0] = 200.0, -200.0, 0.0
    gate, value = double(x)[:, :width], double(x)[:, width:]
    if activation == "silu":
        activated = gate / (1 + np.exp(-gate))
    else:
        activated = gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) / 2
    np.testing.assert_allclose(double(ops.gate(x, activation)), activated * value, rtol=TOLERANCE, atol=TOLERANCE)


def test_nan_is_never_made_into_a_number(ops: Ops) -> None:
    x = random_rows(2, 32)
    x[1, 3] = torch.nan
    assert ops.gate(x, "silu")[1, 3].isnan()
    assert ops.gate(x, "gelu_tanh")[1, 3].isnan()
    assert ops.norm(x, torch.ones(32), 1e-6)[1].isnan().all()
    assert not ops.norm(x, torch.ones(32), 1e-6)[0].isnan().any()


def test_add(ops: Ops) -> None:
    x, y = random_rows(3, 45), random_rows(3, 45, seed=1)
    assert torch.equal(ops.add(x.clone(), y), x + y)


@pytest.mark.parametrize("block_size", [4, 16, 32])
@pytest.mark.parametrize("head_dim", [16, 80])
def test_rotate_and_write_kv(ops: Ops, block_size: int, head_dim: int) -> None:
    spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=head_dim, scale=1.0)
    sequences = [logical_sequence(spec, 21, 5, seed=1), logical_sequence(spec, 9, 1, seed=2)]
    paged = place(sequences, spec, block_size)
    before = paged.kv.keys.clone(), paged.kv.values.clone()
    rope = rope_table(32, head_dim)
    qkv = random_rows(6, 8 * head_dim, seed=3)
    heads = double(qkv).reshape(6, 8, head_dim)
    positions = paged.batch.positions.long()
    cos, sin = double(rope.cos[positions])[:, None], double(rope.sin[positions])[:, None]
    first, second = np.split(heads, 2, axis=2)
    rotated = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=2)

    q = ops.rotate_and_write_kv(qkv.clone(), rope, paged.kv, paged.batch, spec)

    np.testing.assert_allclose(double(q), rotated[:, :4].reshape(6, -1), rtol=TOLERANCE, atol=TOLERANCE)
    for row, slot in enumerate(paged.batch.slots.tolist()):
        block, offset = divmod(slot, block_size)
        key, value = double(paged.kv.keys[block, :, :, offset]), double(paged.kv.values[block, :, offset])
        np.testing.assert_allclose(key, rotated[row, 4:6], rtol=TOLERANCE, atol=TOLERANCE)
        np.testing.assert_array_equal(value, heads[row, 6:])
        before[0][block, :, :, offset] = paged.kv.keys[block, :, :, offset]
        before[1][block, :, offset] = paged.kv.values[block, :, offset]
    torch.testing.assert_close(paged.kv.keys, before[0], rtol=0, atol=0, equal_nan=True)  # no other slot was touched
    torch.testing.assert_close(paged.kv.values, before[1], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("fault", ["slot", "position"])
def test_writes_outside_the_memory_are_refused_by_the_native_kernels(cpu_ops: Ops, fault: str) -> None:
    spec = AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=16, scale=1.0)
    paged = place([logical_sequence(spec, 3, 3, seed=0)], spec, 16)
    if fault == "slot":
        paged.batch.slots[1] = paged.kv.values.shape[0] * 16
    with pytest.raises(IndexError, match="rotary table or a slot"):
        cpu_ops.rotate_and_write_kv(
            random_rows(3, 64), rope_table(8 if fault == "slot" else 2, 16), paged.kv, paged.batch, spec
        )


def test_copy_blocks(ops: Ops, kv_dtype: torch.dtype) -> None:
    spec = AttentionSpec(num_heads=2, num_kv_heads=2, head_dim=16, scale=1.0)
    layers = [place([logical_sequence(spec, 40, 1, seed=s)], spec, 4, kv_dtype).kv for s in (0, 1)]
    before = [[tensor.clone() for tensor in layer.tensors] for layer in layers]
    ops.copy_blocks(layers, [(3, 1), (3, 2), (5, 0)])
    ops.copy_blocks(layers, [])
    for layer, tensors in zip(layers, before, strict=True):
        for tensor in tensors:
            tensor[[1, 2, 0]] = tensor[[3, 3, 5]]
        torch.testing.assert_close(layer.tensors, tuple(tensors), rtol=0, atol=0, equal_nan=True)
