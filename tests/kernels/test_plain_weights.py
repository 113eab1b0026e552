"""Weights in 16 bits: results are those of the same numbers in fp32, bit for bit; half the memory."""

import pytest
import torch
from torch import Tensor

from octavo.kernels.cpu import CpuLinear
from octavo.kernels.interface import Ops
from octavo.kernels.quantized import stack_rows
from tests.kernels.cases import random_rows

HALF_TYPES = [torch.float16, torch.bfloat16]


def hard_weight(out_features: int, in_features: int, dtype: torch.dtype) -> Tensor:
    """Numbers of many magnitudes, subnormal ones and zeros of both signs among them."""
    weight = random_rows(out_features, in_features, seed=1)
    weight[:, ::3] *= 1e-6
    weight[1::7, 1] = -0.0
    return weight.to(dtype)


@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 8, 33, 129, 512])
@pytest.mark.parametrize(("out_features", "in_features"), [(16, 33), (69, 600)])
def test_linears_have_the_bits_of_fp32_weights_with_the_same_numbers(
    ops: Ops, dtype: torch.dtype, num_rows: int, out_features: int, in_features: int
) -> None:
    weight, bias = hard_weight(out_features, in_features, dtype), random_rows(out_features, seed=2)
    x = random_rows(num_rows, in_features)
    expected = ops.linear(x, ops.make_linear(weight.float(), bias))
    assert torch.equal(ops.linear(x, ops.make_linear(weight, bias)), expected)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF_TYPES])
def test_a_table_that_is_also_the_head_gives_its_rows(ops: Ops, dtype: torch.dtype) -> None:
    table = hard_weight(69, 50, dtype)
    token_ids = torch.tensor([0, 68, 15, 16, 16, 3])
    found = ops.embed(ops.make_linear(table), token_ids, 0.3)
    assert torch.equal(found, table[token_ids].float() * 0.3)


@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_numbers_that_are_not_finite_stay_so(ops: Ops, dtype: torch.dtype) -> None:
    weight = torch.ones(17, 20, dtype=dtype)
    weight[3, 4], weight[5, 6] = torch.inf, torch.nan
    y = ops.linear(torch.ones(1, 20), ops.make_linear(weight))[0]
    assert y[3] == torch.inf
    assert y[5].isnan()
    assert (y[torch.arange(17).ne(3) & torch.arange(17).ne(5)] == 20).all()


def test_the_native_kernels_keep_16_bits(cpu_ops: Ops) -> None:
    for dtype in HALF_TYPES:
        linear = cpu_ops.make_linear(torch.ones(32, 8, dtype=dtype))
        assert isinstance(linear, CpuLinear)
        assert linear.packed.nbytes == 32 * 8 * 2
    wide = cpu_ops.make_linear(torch.ones(32, 8, dtype=torch.float64))
    assert isinstance(wide, CpuLinear)
    assert wide.packed.dtype == torch.float32


def test_a_row_past_the_table_is_refused_by_the_native_kernels(cpu_ops: Ops) -> None:
    with pytest.raises(IndexError, match=r"outside 0 \.\. 16"):
        cpu_ops.embed(cpu_ops.make_linear(torch.ones(17, 4, dtype=torch.bfloat16)), torch.tensor([17]))


def test_stacked_weights_keep_the_type_that_they_share() -> None:
    bf16, fp16 = torch.ones(2, 4, dtype=torch.bfloat16), torch.ones(2, 4, dtype=torch.float16)
    kept, widened = stack_rows([bf16, bf16]), stack_rows([bf16, fp16])
    assert isinstance(kept, Tensor)
    assert kept.dtype == torch.bfloat16
    assert isinstance(widened, Tensor)
    assert widened.dtype == torch.float32
