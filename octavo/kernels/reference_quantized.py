"""The specification of a linear on a quantised weight, in plain torch.

For a row and an output, with the row's activations quantised group by group, groups in ascending order:

    sum += (scale of weight * scale of activations) * (whole sum of products)       exact inside the group
    sum += minimum * (scale of activations * whole sum of activations)              where the format has minima

A back end with fused multiply-adds rounds each of these once, torch rounds product and sum: the tolerance of the
contract covers it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.kernels.quantized import QuantizedFormat, QuantizedWeight, quantize_activations

_BYTE = 256


@dataclass(frozen=True, slots=True)
class ReferencePart:
    """``numbers``: fp32 [G, group, out] of whole numbers; ``scales``, ``minima``: fp32 [G, out]."""

    format: QuantizedFormat
    numbers: Tensor
    scales: Tensor
    minima: Tensor | None


def reference_part(weight: QuantizedWeight) -> ReferencePart:
    groups = weight.whole_numbers().view(*weight.scales.shape, weight.format.group)
    return ReferencePart(
        weight.format,
        groups.permute(1, 2, 0).to(torch.float32, memory_format=torch.contiguous_format),
        weight.scales.float().T.contiguous(),
        None if weight.minima is None else weight.minima.float().T.contiguous(),
    )


def part_times_row(row: Tensor, part: ReferencePart) -> Tensor:
    """``row`` fp32 [in] -> [out]."""
    numbers, scales = quantize_activations(row[None], part.format.group, part.format.activation_limit)
    sums = _whole_sums(numbers[0], part)
    whole = numbers[0].double().sum(dim=1).float()  # [G]
    total = torch.zeros(part.numbers.shape[2])
    for group, scale in enumerate(scales[0]):
        total = total + sums[group] * (part.scales[group] * scale)
        if part.minima is not None:
            total = total + part.minima[group] * (scale * whole[group])
    return total


def _whole_sums(numbers: Tensor, part: ReferencePart) -> Tensor:
    """fp32 [G, out]: the sum of products of each group of ``numbers`` [G, group], rounded once.

    In two bytes, because sums of up to 32 products of 8 by 8 bits are whole numbers that fp32 holds exactly.
    """
    high = (numbers / _BYTE).floor()
    both = torch.stack([high, numbers - _BYTE * high], dim=1)  # [G, 2, group]
    products = torch.bmm(both, part.numbers).double()
    return (_BYTE * products[:, 0] + products[:, 1]).float()
