"""Linears on quantised weights: every format on each back end, against float64 and against the specification."""

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.kernels.cpu import CpuOps
from octavo.kernels.interface import Ops
from octavo.kernels.quantized import (
    FORMATS,
    INT4_MINIMA,
    INT8,
    INT8_FINE,
    QuantizedFormat,
    QuantizedWeight,
    StackedWeight,
    quantize_activations,
    stack_rows,
)
from octavo.kernels.reference import ReferenceOps
from tests.kernels.cases import Float64, double, random_rows

NUM_ROWS = [1, 2, 3, 5, 8, 33, 129, 512]
FORMAT_NAMES = [weight_format.name for weight_format in FORMATS]
TOLERANCE = 1e-5  # docs/kernel-contract.md: fp32, on inputs of unit scale


@pytest.fixture(params=FORMATS, ids=FORMAT_NAMES)
def weight_format(request: pytest.FixtureRequest) -> QuantizedFormat:
    format_: QuantizedFormat = request.param
    return format_


def random_weight(
    weight_format: QuantizedFormat, out_features: int, in_features: int, seed: int = 0
) -> QuantizedWeight:
    """Every number that the format has, extremes included, and scales of about 1 / the greatest."""
    generator = torch.Generator().manual_seed(seed)
    groups = (out_features, in_features // weight_format.group)
    if weight_format.bits == 4:
        numbers = torch.randint(0, 256, (out_features, in_features // 2), generator=generator, dtype=torch.uint8)
    else:
        numbers = torch.randint(-128, 128, (out_features, in_features), generator=generator, dtype=torch.int8)
    scales = torch.rand(groups, generator=generator) / 2 ** (weight_format.bits - 1)
    minima = torch.randn(groups, generator=generator).to(weight_format.scale_dtype)
    return QuantizedWeight(
        weight_format, numbers, scales.to(weight_format.scale_dtype), minima if weight_format.has_minima else None
    )


def exact_linear(x: Tensor, weight: QuantizedWeight) -> tuple[Float64, Float64]:
    """In float64, of the activations as they are quantised: the result, and the sum of magnitudes behind it."""
    numbers, scales = quantize_activations(x, weight.format.group, weight.format.activation_limit)
    rounded = (double(numbers) * double(scales)[:, :, None]).reshape(x.shape)
    groups = double(weight.whole_numbers()).reshape(*weight.scales.shape, -1)
    matrix = groups * double(weight.scales)[:, :, None]
    magnitude = np.abs(matrix)
    if weight.minima is not None:
        matrix = matrix + double(weight.minima)[:, :, None]
        magnitude = magnitude + np.abs(double(weight.minima)[:, :, None])
    flat = (weight.out_features, weight.in_features)
    return rounded @ matrix.reshape(flat).T, np.abs(rounded) @ magnitude.reshape(flat).T


@pytest.mark.parametrize("num_rows", [1, 3, 4, 7])
@pytest.mark.parametrize(("out_features", "in_features"), [(1, 32), (16, 64), (17, 96), (70, 544)])
def test_linear_against_float64(
    ops: Ops, weight_format: QuantizedFormat, num_rows: int, out_features: int, in_features: int
) -> None:
    weight = random_weight(weight_format, out_features, in_features)
    x, bias = random_rows(num_rows, in_features, seed=1), random_rows(out_features, seed=2)
    exact, magnitude = exact_linear(x, weight)
    linear = ops.make_linear(weight)
    assert (linear.out_features, linear.in_features) == (out_features, in_features)
    assert np.all(np.abs(double(ops.linear(x, linear)) - exact) <= TOLERANCE * (magnitude + 1))
    biased = double(ops.linear(x, ops.make_linear(weight, bias)))
    assert np.all(np.abs(biased - exact - double(bias)) <= TOLERANCE * (magnitude + 1))


def test_rounding_activations_costs_little(ops: Ops, weight_format: QuantizedFormat) -> None:
    """Against the same weights in float64 and activations as they are."""
    weight = random_weight(weight_format, 40, 512)
    x = random_rows(5, 512, seed=1)
    exact = double(x) @ double(weight.dequantize()).T
    error = np.abs(double(ops.linear(x, ops.make_linear(weight))) - exact).max() / np.abs(exact).std()
    assert error < (4e-4 if weight_format.bits == 8 else 0.05)


def test_native_portable_kernels_are_the_specification_bit_for_bit(
    cpu_ops: Ops, weight_format: QuantizedFormat
) -> None:
    """Whole sums are exact and the rest is rounded in the same order; fused multiply-adds round once where torch rounds
    twice, so those of AVX2 are only near."""
    assert isinstance(cpu_ops, CpuOps)
    weight = random_weight(weight_format, 37, 160)
    x = random_rows(6, 160, seed=1)
    reference = ReferenceOps()
    expected = reference.linear(x, reference.make_linear(weight))
    actual = cpu_ops.linear(x, cpu_ops.make_linear(weight))
    if cpu_ops.isa == "portable":
        assert torch.equal(actual, expected)
    else:
        torch.testing.assert_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_greatest_numbers_do_not_overflow(ops: Ops, weight_format: QuantizedFormat) -> None:
    """All numbers at their ends, activations at theirs: the greatest whole sums there can be."""
    weight = random_weight(weight_format, 32, 64)
    ends = (0xFF, 0x00, 0xF0) if weight_format.bits == 4 else (127, -128, 127)
    for end, sign in zip(ends, (1.0, 1.0, -1.0), strict=True):
        weight.numbers.fill_(end)
        x = torch.full((5, 64), 3.0 * sign)
        exact, magnitude = exact_linear(x, weight)
        assert np.all(np.abs(double(ops.linear(x, ops.make_linear(weight))) - exact) <= TOLERANCE * (magnitude + 1))


@pytest.mark.parametrize("num_rows", NUM_ROWS)
def test_a_row_does_not_depend_on_its_neighbours(ops: Ops, weight_format: QuantizedFormat, num_rows: int) -> None:
    linear = ops.make_linear(random_weight(weight_format, 53, 96), random_rows(53, seed=1))
    x = random_rows(num_rows, 96, seed=2)
    together = ops.linear(x, linear)
    rows = range(num_rows) if num_rows < 10 else [0, 1, num_rows // 2, num_rows - 1]
    for row in rows:
        assert torch.equal(ops.linear(x[row : row + 1], linear)[0], together[row])


@pytest.mark.parametrize("num_rows", [1, 6, 140])
def test_the_number_of_threads_changes_no_bits(cpu_ops: Ops, weight_format: QuantizedFormat, num_rows: int) -> None:
    assert isinstance(cpu_ops, CpuOps)
    linear = cpu_ops.make_linear(random_weight(weight_format, 16 * 40 + 3, 192))
    x = random_rows(num_rows, 192, seed=1)
    before = cpu_ops.num_threads
    results = []
    for count in (1, 2, 3, 4):
        cpu_ops.set_num_threads(count)
        results.append((cpu_ops.linear(x, linear), cpu_ops.embed(linear, torch.arange(600))))
    cpu_ops.set_num_threads(before)
    for product, rows in results[1:]:
        assert torch.equal(product, results[0][0])
        assert torch.equal(rows, results[0][1])


def test_what_is_not_finite_makes_its_row_nan(ops: Ops, weight_format: QuantizedFormat) -> None:
    linear = ops.make_linear(random_weight(weight_format, 20, 64))
    x = random_rows(4, 64)
    plain = ops.linear(x, linear)
    x[1, 40], x[3, 0] = torch.nan, -torch.inf
    y = ops.linear(x, linear)
    assert y[1].isnan().all()
    assert y[3].isnan().all()
    assert torch.equal(y[[0, 2]], plain[[0, 2]])


@pytest.mark.parametrize("value", [0.0, 1e-45, 1e30])
def test_rows_of_zeros_and_of_extreme_numbers(ops: Ops, weight_format: QuantizedFormat, value: float) -> None:
    weight = random_weight(weight_format, 20, 32)
    x = torch.full((2, 32), value)
    x[1, ::2] = 0.0
    exact, magnitude = exact_linear(x, weight)
    y = double(ops.linear(x, ops.make_linear(weight)))
    assert np.all(np.abs(y - exact) <= TOLERANCE * magnitude + 1e-40)


def test_embed_unpacks_rows(ops: Ops, weight_format: QuantizedFormat) -> None:
    weight = random_weight(weight_format, 50, 96)
    table, ids = ops.make_linear(weight), torch.tensor([49, 0, 7, 7, 33])
    assert torch.equal(ops.embed(table, ids), weight.dequantize()[ids])
    assert torch.equal(ops.embed(table, ids, 1.7), weight.dequantize()[ids] * 1.7)


@pytest.mark.parametrize("bad", [-1, 50])
def test_rows_that_do_not_exist_are_refused_by_the_native_kernels(cpu_ops: Ops, bad: int) -> None:
    table = cpu_ops.make_linear(random_weight(INT8, 50, 32))
    with pytest.raises(IndexError, match=r"0 \.\. 49"):
        cpu_ops.embed(table, torch.tensor([1, bad]))


def test_parts_of_several_formats_are_one_linear(ops: Ops) -> None:
    weights = [
        random_weight(kind, size, 64, seed=size) for kind, size in ((INT4_MINIMA, 20), (INT8_FINE, 7), (INT8, 33))
    ]
    stacked = stack_rows(weights)
    assert isinstance(stacked, StackedWeight)
    bias, x = random_rows(60, seed=3), random_rows(5, 64, seed=4)
    linear = ops.make_linear(stacked, bias)
    assert (linear.out_features, linear.in_features) == (60, 64)
    apart = torch.cat([ops.linear(x, ops.make_linear(weight)) for weight in weights], dim=1) + bias
    assert torch.equal(ops.linear(x, linear), apart)


def test_rows_are_chosen_and_stacked(weight_format: QuantizedFormat) -> None:
    weight = random_weight(weight_format, 12, 64)
    order = torch.tensor([3, 1, 1, 11])
    assert torch.equal(weight.rows(order).dequantize(), weight.dequantize()[order])
    stacked = stack_rows([weight, weight.rows(order)])
    assert isinstance(stacked, QuantizedWeight)
    assert torch.equal(stacked.dequantize(), torch.cat([weight.dequantize(), weight.dequantize()[order]]))
    plain = stack_rows([weight, random_rows(3, 64)])
    assert torch.equal(plain, torch.cat([weight.dequantize(), random_rows(3, 64)]))
