"""The tensors of a folder of safetensors."""

from pathlib import Path

import torch
from torch import Tensor

from octavo.loading.safetensors_header import SafetensorsHeader


class SafetensorsCheckpoint(SafetensorsHeader):
    """A ``Checkpoint`` in a folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, framework="pt")

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._handles[name].get_tensor(name)
        return tensor.to(torch.float32)

    def read_matrix(self, name: str) -> Tensor:
        tensor: Tensor = self._handles[name].get_tensor(name)
        return tensor
