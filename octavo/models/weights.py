"""The weights of a model as its layers take them: projections merged into one, embedding and head."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from octavo.kernels.interface import Linear, Ops
from octavo.kernels.quantized import QuantizedWeight, stack_rows
from octavo.models import names
from octavo.models.config import ModelConfig


class ModelWeights(Mapping[str, Tensor]):
    """The weights of a model by canonical name, in fp32; matrices also as they are to be multiplied."""

    @abstractmethod
    def matrix(self, name: str) -> Tensor | QuantizedWeight:
        """A matrix [out, in] for a linear or an embedding table: as it is stored where it may stay so."""
        ...

    def linear(self, ops: Ops, matrices: tuple[str, ...]) -> Linear:
        """One linear whose outputs are those of ``matrices`` (x.weight) side by side, with their biases (x.bias), which
        all of them have, or none."""
        biases = [self[bias] for name in matrices if (bias := f"{name.removesuffix('weight')}bias") in self]
        weight = stack_rows([self.matrix(name) for name in matrices])
        return ops.make_linear(weight, torch.cat(biases) if biases else None)


def merged_linear(ops: Ops, weights: ModelWeights, parts: Sequence[str]) -> Linear:
    """One linear whose outputs are those of ``parts`` side by side; all of them have a bias, or none."""
    return weights.linear(ops, tuple(f"{name}.weight" for name in parts))


def embedding_and_head(ops: Ops, weights: ModelWeights, config: ModelConfig) -> tuple[Linear, Linear]:
    """The table as ``Ops.embed`` takes it, and the head: one linear for both where they are tied."""
    table = weights.linear(ops, (names.EMBEDDING,))
    return table, table if config.tie_embeddings else weights.linear(ops, (names.HEAD,))
