"""Quantising plain weights when they are loaded: the settings' names, and how each rounds."""

from typing import Literal

import numpy as np
from gguf import GGMLQuantizationType, quants
from torch import Tensor

from octavo.kernels.quantized import QuantizedWeight
from octavo.loading.gguf_quants import quantized_weight

Quantization = Literal["int8", "int4"]
QUANTIZATIONS: dict[Quantization, GGMLQuantizationType] = {
    "int8": GGMLQuantizationType.Q8_0,
    "int4": GGMLQuantizationType.Q4_1,
}
"""Each name, and the kind of GGUF whose rule of rounding it takes: groups of 32 numbers of a row share a scale in fp16
(int8: the greatest magnitude is 127), and in 4 bits a minimum as well."""


def quantize(weight: Tensor, quantization: Quantization) -> Tensor | QuantizedWeight:
    """``weight`` fp32 [out, in] rounded; as it is where ``in`` is no multiple of 32."""
    kind = QUANTIZATIONS[quantization]
    if weight.shape[1] % 32:
        return weight
    return quantized_weight(kind, np.asarray(quants.quantize(weight.numpy(), kind)), weight.shape[0])
