"""Plain weights as the native kernels read them: panels of 16 outputs."""

from dataclasses import dataclass

import torch
from torch import Tensor

WEIGHT_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""OctavoWeightType; other types become fp32."""


@dataclass(frozen=True, slots=True)
class CpuLinear:
    """``packed``: fp32, fp16 or bf16 [ceil(out / 16), in, 16], zeros past ``out_features``; ``bias``: fp32 [out]."""

    packed: Tensor
    bias: Tensor | None
    out_features: int
    in_features: int

    @property
    def weight_type(self) -> int:
        return WEIGHT_TYPES[self.packed.dtype]
