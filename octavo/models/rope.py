"""Rotary angle tables, with the very numbers of ``transformers`` (``modeling_rope_utils.py``) in fp32."""

import math

import torch
from torch import Tensor

from octavo.kernels.interface import RopeTable
from octavo.models.config import ModelConfig, RopeConfig


def rope_tables(config: ModelConfig) -> dict[RopeConfig, RopeTable]:
    """One table for each kind of rotary settings among the layers of ``config``."""
    return {rope: rope_table(rope, config.head_dim, config.max_position) for rope in {x.rope for x in config.layers}}


def rope_table(rope: RopeConfig, head_dim: int, max_position: int) -> RopeTable:
    """Angles of positions 0 .. ``max_position`` - 1: cos and sin, fp32 [max_position, head_dim / 2]."""
    angles = torch.arange(max_position, dtype=torch.float32)[:, None] * _frequencies(rope, head_dim)
    return RopeTable(cos=angles.cos(), sin=angles.sin())


def _frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians a position of each pair of a head, fp32 [head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    match rope.kind:
        case "default":
            return frequencies
        case "linear":
            return frequencies / rope.factor
        case "llama3":
            return _llama3_bands(rope, frequencies)
        case "divisors":
            return frequencies / torch.tensor(rope.divisors, dtype=torch.float32)


def _llama3_bands(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    """Llama 3.1: long waves are stretched by ``factor``, short ones kept, those between are blended."""
    context, low, high = rope.original_max_position, rope.low_freq_factor, rope.high_freq_factor
    wavelengths = 2 * math.pi / frequencies
    stretched = torch.where(wavelengths > context / low, frequencies / rope.factor, frequencies)
    blend = (context / wavelengths - low) / (high - low)
    blended = (1 - blend) * stretched / rope.factor + blend * stretched
    between = (wavelengths >= context / high) & (wavelengths <= context / low)
    return torch.where(between, blended, stretched)
