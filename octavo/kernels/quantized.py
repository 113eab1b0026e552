"""Weights held as whole numbers of 4 or 8 bits, in groups that share a scale: what model files store, without loss.

    weight[o, i] = scale[o, i // group] * number[o, i] (+ minimum[o, i // group])

How a linear multiplies them: ``reference_quantized`` (the specification) and docs/cpu.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class QuantizedFormat:
    """How numbers are held.

    ``bits`` 8: -128 .. 127. 4: -8 .. 7; with ``has_minima`` 0 .. 15. ``group`` neighbours of a row share a scale and a
    minimum, both in ``scale_dtype``. ``name``: as messages have it.
    """

    name: str
    bits: int
    group: int
    scale_dtype: torch.dtype
    has_minima: bool = False

    @property
    def activation_limit(self) -> int:
        """Greatest magnitude of an activation's whole number: 16 bits beside weights of 8, 8 bits beside those of 4."""
        return 32767 if self.bits == 8 else 127


INT8 = QuantizedFormat("int8", 8, 32, torch.float16)
INT8_FINE = QuantizedFormat("int8 in groups of 16", 8, 16, torch.float32)
INT4 = QuantizedFormat("int4", 4, 32, torch.float16)
INT4_MINIMA = QuantizedFormat("int4 with minima", 4, 32, torch.float16, has_minima=True)
INT4_MINIMA_FP32 = QuantizedFormat("int4 with minima in float32", 4, 32, torch.float32, has_minima=True)

FORMATS = (INT8, INT8_FINE, INT4, INT4_MINIMA, INT4_MINIMA_FP32)
"""In the order of the native kernels' numbers for them (OctavoFormat)."""


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A matrix [out, in] in one format; ``in`` is a multiple of the group.

    ``numbers``: int8 [out, in]; in 4 bits uint8 [out, in / 2], where byte t of the 16 bytes of a group holds number t
    in its low half and number t + 16 in its high half, each stored as 0 .. 15 (without minima that is 8 more than the
    number itself). ``scales``, ``minima``: [out, in / group] in the format's type; ``minima`` None where it has none.
    """

    format: QuantizedFormat
    numbers: Tensor
    scales: Tensor
    minima: Tensor | None = None

    @property
    def out_features(self) -> int:
        return self.numbers.shape[0]

    @property
    def in_features(self) -> int:
        return self.scales.shape[1] * self.format.group

    def rows(self, index: Tensor) -> "QuantizedWeight":
        """The rows ``index`` (int64 [n]), in that order."""
        minima = None if self.minima is None else self.minima[index]
        return QuantizedWeight(self.format, self.numbers[index], self.scales[index], minima)

    def whole_numbers(self) -> Tensor:
        """int8 [out, in]: one number a byte, as the formula above has them."""
        if self.format.bits == 8:
            return self.numbers
        halves = self.numbers.view(self.out_features, -1, self.format.group // 2)
        unpacked = torch.cat([halves & 15, halves >> 4], dim=2).view(self.out_features, -1).to(torch.int8)
        return unpacked if self.format.has_minima else unpacked - 8

    def dequantize(self) -> Tensor:
        """The matrix in fp32 [out, in]."""
        groups = self.whole_numbers().view(*self.scales.shape, self.format.group)
        weight = groups * self.scales.float().unsqueeze(2)
        if self.minima is not None:
            weight += self.minima.float().unsqueeze(2)
        return weight.view(self.out_features, self.in_features)


@dataclass(frozen=True, slots=True)
class StackedWeight:
    """Matrices of several formats one under another, as one of the same width."""

    parts: tuple[QuantizedWeight, ...]

    @property
    def out_features(self) -> int:
        return sum(part.out_features for part in self.parts)

    @property
    def in_features(self) -> int:
        return self.parts[0].in_features


Weight = Tensor | QuantizedWeight | StackedWeight
"""A matrix [out, in] as a file gives it to a back end."""


def quantized_parts(weight: QuantizedWeight | StackedWeight) -> tuple[QuantizedWeight, ...]:
    return weight.parts if isinstance(weight, StackedWeight) else (weight,)


def stack_rows(weights: Sequence[Tensor | QuantizedWeight]) -> Weight:
    """One matrix of all rows, in order. Neighbours of one quantised format become one; plain ones keep a type that they
    share, else they become fp32, as do plain and quantised ones together."""
    quantized = [weight for weight in weights if isinstance(weight, QuantizedWeight)]
    if len(quantized) < len(weights):
        plain = [weight.dequantize() if isinstance(weight, QuantizedWeight) else weight for weight in weights]
        return torch.cat(plain if len({w.dtype for w in plain}) == 1 else [w.float() for w in plain])
    parts: list[QuantizedWeight] = []
    for weight in quantized:
        if parts and parts[-1].format == weight.format:
            parts[-1] = _concatenate(parts[-1], weight)
        else:
            parts.append(weight)
    return parts[0] if len(parts) == 1 else StackedWeight(tuple(parts))


def _concatenate(upper: QuantizedWeight, lower: QuantizedWeight) -> QuantizedWeight:
    minima = None
    if upper.minima is not None and lower.minima is not None:
        minima = torch.cat([upper.minima, lower.minima])
    numbers, scales = torch.cat([upper.numbers, lower.numbers]), torch.cat([upper.scales, lower.scales])
    return QuantizedWeight(upper.format, numbers, scales, minima)


def quantize_activations(x: Tensor, group: int, limit: int) -> tuple[Tensor, Tensor]:
    """Each group of ``x`` fp32 [R, in] as whole numbers, in fp32 [R, in / group, group], and a scale [R, in / group].

    The scale is the greatest magnitude / ``limit``, a number is x / scale rounded half to even and clamped (only a
    scale near the smallest number of fp32 needs that). A group of zeros has scale 0; one that holds NaN or infinity has
    scale NaN and numbers 0, so that its row becomes NaN.
    """
    groups = x.reshape(x.shape[0], -1, group)
    greatest = groups.abs().amax(dim=2, keepdim=True)
    scales = torch.where(greatest.isfinite(), greatest / limit, torch.nan)
    steps = torch.where(scales > 0, groups / scales, 0.0).round()
    return steps.clamp(-limit, limit), scales.squeeze(2)
