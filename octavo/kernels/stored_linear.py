"""Linears as a file holds them, in the layout of the back end that made them: a few tensors and how to read these."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from octavo.kernels.interface import Linear


@dataclass(frozen=True, slots=True)
class StoredLinear:
    """``description``: plain values, which JSON can hold. ``tensors``: contiguous."""

    description: Mapping[str, Any]
    tensors: tuple[Tensor, ...]


@runtime_checkable
class StoresLinears(Protocol):
    """What a back end offers if its linears can be kept in a file. ``linear_layout``: differs for every layout, and for
    every change of one."""

    @property
    def linear_layout(self) -> str: ...

    def store_linear(self, linear: Linear) -> StoredLinear:
        """Shares memory with ``linear``."""
        ...

    def restore_linear(self, stored: StoredLinear) -> Linear:
        """Of what ``store_linear`` of the same layout gave; uses the tensors where they are."""
        ...
