"""The quantised kinds of GGUF as Octavo's formats, without loss: bytes are moved, and scales of K kinds multiplied out,
which fp32 holds exactly. Layouts of the blocks: ggml-common.h and ``gguf.quants``."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from torch import Tensor

from octavo.kernels.quantized import (
    INT4,
    INT4_MINIMA,
    INT4_MINIMA_FP32,
    INT8,
    INT8_FINE,
    QuantizedFormat,
    QuantizedWeight,
)

Array = npt.NDArray[Any]
_HALF = 2
"""Bytes of a scale in fp16."""


def quantized_weight(kind: GGMLQuantizationType, data: Array, out_features: int) -> QuantizedWeight:
    """A matrix of ``out_features`` rows from its bytes; ``kind`` is a key of ``UNPACKERS``. Memory of its own."""
    blocks = data.reshape(-1, GGML_QUANT_SIZES[kind][1])
    weight_format, unpack = UNPACKERS[kind]
    numbers, scales, minima = unpack(blocks)
    dtype = np.uint8 if weight_format.bits == 4 else np.int8
    return QuantizedWeight(
        weight_format,
        torch.from_numpy(np.ascontiguousarray(numbers).view(dtype)).view(out_features, -1),
        _rows(scales, out_features),
        None if minima is None else _rows(minima, out_features),
    )


def _rows(values: Array, out_features: int) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).view(out_features, -1)


_Unpacked = tuple[Array, Array, Array | None]
"""Numbers, scales and minima of blocks [n, bytes]."""


def _halves(blocks: Array, offset: int) -> Array:
    """The fp16 number at byte ``offset`` of each block, [n, 1]."""
    return np.ascontiguousarray(blocks[:, offset : offset + _HALF]).view(np.float16)


def _unpack_q4_0(blocks: Array) -> _Unpacked:
    return blocks[:, 2:], _halves(blocks, 0), None


def _unpack_q4_1(blocks: Array) -> _Unpacked:
    return blocks[:, 4:], _halves(blocks, 0), _halves(blocks, 2)


def _unpack_q5_0(blocks: Array) -> _Unpacked:
    """Scale, 32 fifth bits, 32 halves of bytes; a number is 16 less than its five bits."""
    fifth = np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little")
    halves = blocks[:, 6:]
    four = np.concatenate([halves & 15, halves >> 4], axis=1)
    return (four | fifth << 4) - np.uint8(16), _halves(blocks, 0), None


def _unpack_q8_0(blocks: Array) -> _Unpacked:
    return blocks[:, 2:], _halves(blocks, 0), None


def _unpack_q4_k(blocks: Array) -> _Unpacked:
    """256 numbers: two fp16 scales, 12 bytes with eight 6-bit scales and minima, then four times 32 bytes, each with a
    group in its low halves and the next one in its high halves."""
    six_bit_scales, six_bit_minima = quants.Q4_K.get_scale_min(blocks[:, 4:16])
    scales = _halves(blocks, 0).astype(np.float32) * six_bit_scales.reshape(-1, 8).astype(np.float32)
    minima = _halves(blocks, 2).astype(np.float32) * six_bit_minima.reshape(-1, 8).astype(np.float32)
    chunks = blocks[:, 16:].reshape(-1, 4, 2, 16)  # [n, pair of groups, first or second 16 numbers, byte]
    first, second = chunks[:, :, 0], chunks[:, :, 1]
    low, high = (first & 15) | second << 4, first >> 4 | (second & 0xF0)
    return np.stack([low, high], axis=2), scales, -minima


def _unpack_q6_k(blocks: Array) -> _Unpacked:
    """256 numbers: 128 bytes with four low bits of two numbers, 64 bytes with two high bits of four, 16 scales in int8,
    a scale in fp16; a number is 32 less than its six bits."""
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    numbers = (low & 15).reshape(-1, 256) | (high & 3).reshape(-1, 256) << 4
    scales = _halves(blocks, 208).astype(np.float32) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return numbers - np.uint8(32), scales, None


UNPACKERS: dict[GGMLQuantizationType, tuple[QuantizedFormat, Callable[[Array], _Unpacked]]] = {
    GGMLQuantizationType.Q4_0: (INT4, _unpack_q4_0),
    GGMLQuantizationType.Q4_1: (INT4_MINIMA, _unpack_q4_1),
    GGMLQuantizationType.Q5_0: (INT8, _unpack_q5_0),
    GGMLQuantizationType.Q8_0: (INT8, _unpack_q8_0),
    GGMLQuantizationType.Q4_K: (INT4_MINIMA_FP32, _unpack_q4_k),
    GGMLQuantizationType.Q6_K: (INT8_FINE, _unpack_q6_k),
}
