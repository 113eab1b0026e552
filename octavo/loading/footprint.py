"""How many bytes the weights of a model take once they are loaded for the native kernels; without torch."""

from math import prod

from octavo.loading.header import Header, StoredTensor
from octavo.models.names import EMBEDDING, HEAD, weight_shapes

_FP32_BITS = 32
_BITS = {"F16": 16.0, "BF16": 16.0, "Q4_0": 4.5, "Q4_1": 5.0, "Q4_K": 6.0, "Q5_0": 8.5, "Q8_0": 8.5, "Q6_K": 10.0}
"""Of a number of a matrix by its kind in the file, shares of scales and minima included (docs/cpu.md); others: fp32."""
_ROUNDED_BITS = {"int8": _BITS["Q8_0"], "int4": _BITS["Q4_1"]}
_PLAIN = ("F16", "BF16", "F32", "F64")


def loaded_weight_bytes(header: Header, dtype: str = "auto", quantization: str | None = None) -> int:
    """Without the padding of the last 16 outputs, and as if projections that are merged shared a kind.

    ``dtype``, ``quantization``: as ``load_model`` takes them."""
    bits = sum(
        prod(shape) * _bits(name, header.tensors[name], dtype, quantization)
        for name, shape in weight_shapes(header.config).items()
        if name in header.tensors
    )
    return round(bits / 8)


def _bits(name: str, tensor: StoredTensor, dtype: str, quantization: str | None) -> float:
    if len(tensor.shape) < 2 or dtype != "auto":
        return _FP32_BITS
    if quantization is not None and tensor.kind in _PLAIN and tensor.shape[1] % 32 == 0:
        return _ROUNDED_BITS["int8" if name in (EMBEDDING, HEAD) else quantization]
    return _BITS.get(tensor.kind, _FP32_BITS)
