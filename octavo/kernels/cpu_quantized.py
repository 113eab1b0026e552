"""Quantised weights as the native kernels read them: panels of 16 outputs (csrc/impl/quantized_formats.h)."""

from ctypes import CDLL
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.kernels.quantized import FORMATS, QuantizedFormat, QuantizedWeight

_LANES = 16


@dataclass(frozen=True, slots=True)
class CpuQuantizedPart:
    """Outputs ``first_output`` .. ``first_output + out_features`` of a linear, all in one format.

    ``packed``: uint8 [ceil(out / 16), in / group, bytes of a block], zeros past the last output.
    """

    format: QuantizedFormat
    packed: Tensor
    first_output: int
    out_features: int

    @property
    def format_number(self) -> int:
        return FORMATS.index(self.format)


@dataclass(frozen=True, slots=True)
class CpuQuantizedLinear:
    """One or more parts, one below another; ``bias``: fp32 [out]."""

    parts: tuple[CpuQuantizedPart, ...]
    bias: Tensor | None
    out_features: int
    in_features: int


def pack(library: CDLL, weight: QuantizedWeight, first_output: int) -> CpuQuantizedPart:
    weight_format, (rows, num_groups) = weight.format, weight.scales.shape
    scale_bytes = weight_format.scale_dtype.itemsize * (2 if weight_format.has_minima else 1)
    block_bytes = _LANES * (weight_format.group * weight_format.bits // 8 + scale_bytes)
    packed = torch.empty(-(-rows // _LANES), num_groups, block_bytes, dtype=torch.uint8)
    numbers, scales = weight.numbers.contiguous(), weight.scales.contiguous()
    minima = None if weight.minima is None else weight.minima.contiguous()
    library.octavo_pack_quantized(
        numbers.data_ptr(),
        scales.data_ptr(),
        None if minima is None else minima.data_ptr(),
        FORMATS.index(weight_format),
        packed.data_ptr(),
        rows,
        weight.in_features,
    )
    return CpuQuantizedPart(weight_format, packed, first_output, rows)


def quantized_row_floats(weight_format: QuantizedFormat, in_features: int) -> int:
    """Width, in floats, of a quantised row of activations: scales, sums, and numbers in 8 or 16 bits."""
    activation_bytes = 2 if weight_format.bits == 8 else 1
    return in_features // weight_format.group * 2 + in_features * activation_bytes // 4
