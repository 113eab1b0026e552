"""The native back end's linears as a file holds them (``StoredLinear``)."""

from octavo.kernels.cpu_linear import CpuLinear
from octavo.kernels.cpu_quantized import CpuQuantizedLinear, CpuQuantizedPart
from octavo.kernels.quantized import FORMATS
from octavo.kernels.stored_linear import StoredLinear

LAYOUT = "panels of 16, 1"
"""The number goes up with every change of how a linear is packed (docs/cpu.md); instruction sets share it."""


def store_linear(linear: CpuLinear | CpuQuantizedLinear) -> StoredLinear:
    bias = () if linear.bias is None else (linear.bias,)
    parts = (
        [[part.format.name, part.first_output, part.out_features] for part in linear.parts]
        if isinstance(linear, CpuQuantizedLinear)
        else None
    )
    packed = (linear.packed,) if isinstance(linear, CpuLinear) else tuple(part.packed for part in linear.parts)
    description = {"out": linear.out_features, "in": linear.in_features, "bias": bool(bias), "parts": parts}
    return StoredLinear(description, packed + bias)


def restore_linear(stored: StoredLinear) -> CpuLinear | CpuQuantizedLinear:
    description, tensors = stored.description, stored.tensors
    out_features, in_features = description["out"], description["in"]
    bias = tensors[-1] if description["bias"] else None
    if description["parts"] is None:
        return CpuLinear(tensors[0], bias, out_features, in_features)
    formats = {known.name: known for known in FORMATS}
    parts = tuple(
        CpuQuantizedPart(formats[name], packed, first_output, num_outputs)
        for (name, first_output, num_outputs), packed in zip(description["parts"], tensors, strict=False)
    )
    return CpuQuantizedLinear(parts, bias, out_features, in_features)
