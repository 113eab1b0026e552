"""The number formats of GGUF tensors that are supported, and unpacking them to fp32; without torch."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, ReaderTensor, quants

from octavo.core.errors import ConfigurationError

_QUANTS: dict[GGMLQuantizationType, Any] = {
    kind: getattr(quants, kind.name)
    for kind in (
        GGMLQuantizationType.BF16,
        GGMLQuantizationType.Q4_0,
        GGMLQuantizationType.Q4_1,
        GGMLQuantizationType.Q5_0,
        GGMLQuantizationType.Q8_0,
        GGMLQuantizationType.Q4_K,
        GGMLQuantizationType.Q6_K,
    )
}
_PLAIN = (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
# Numbers unpacked at a time by one thread: temporaries stay in its cache.
_CHUNK = 1 << 17


def check_kind(tensor: ReaderTensor) -> None:
    """
    Raises:
        ConfigurationError: its number format is not supported.
    """
    if tensor.tensor_type not in (*_PLAIN, *_QUANTS):
        known = ", ".join(kind.name for kind in (*_PLAIN, *_QUANTS))
        raise ConfigurationError(
            f"GGUF tensor {tensor.name} is stored as {tensor.tensor_type.name}, which is not supported; "
            f"supported: {known}"
        )


def unpacked(tensor: ReaderTensor) -> npt.NDArray[np.float32]:
    """A tensor of the file in fp32, in memory of its own; axes in the order of torch (last one contiguous).

    Raises:
        ConfigurationError: its number format is not supported.
    """
    shape = tuple(int(size) for size in reversed(tensor.shape))
    data = np.asarray(tensor.data)
    if tensor.tensor_type in _PLAIN:
        return data.astype(np.float32).reshape(shape)
    check_kind(tensor)
    unpack = _QUANTS[tensor.tensor_type].dequantize_blocks
    block_size, block_bytes = GGML_QUANT_SIZES[tensor.tensor_type]
    blocks = data.reshape(-1, block_bytes)
    out = np.empty((len(blocks), block_size), np.float32)
    step = max(1, _CHUNK // block_size)

    def unpack_chunk(start: int) -> None:
        out[start : start + step] = unpack(blocks[start : start + step])

    with ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:
        list(pool.map(unpack_chunk, range(0, len(blocks), step)))
    return out.reshape(shape)
