"""What every model file offers: one forward pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from octavo.kernels.interface import BatchLayout, KVLayer, Ops
from octavo.models.config import ModelConfig
from octavo.models.weights import ModelWeights


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """One step for a model.

    ``token_ids``: int64 [R]. ``kv``: for each layer its KV memory and the batch layout of its group.
    ``head_rows``: int64 [N], the rows whose next tokens are wanted.
    """

    token_ids: Tensor
    kv: Sequence[tuple[KVLayer, BatchLayout]]
    head_rows: Tensor


class Model(Protocol):
    """An architecture with its weights, laid out for one back end."""

    config: ModelConfig

    def __init__(self, config: ModelConfig, weights: ModelWeights, ops: Ops) -> None:
        """``weights`` holds exactly the names and shapes of ``names.weight_shapes(config)``, fp32; loading checks this.

        A mapping may produce each tensor when it is asked for, so that peak memory stays near one copy."""
        ...

    def forward(self, inputs: ModelInputs) -> Tensor:
        """Hidden states fp32 [N, hidden_size] of ``inputs.head_rows``, as ``head`` takes them."""
        ...

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Rows of what ``forward`` gave, after the final norm: fp32 [n, hidden_size], what embeddings are made of."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Logits fp32 [n, vocab_size] of some rows of what ``forward`` gave: as many as the caller has memory for."""
        ...
