"""Gemma 3, text only: norms before and after each half of a layer, scaled embeddings, windows on most layers."""

from dataclasses import dataclass

from torch import Tensor

from octavo.kernels.interface import Ops
from octavo.models import names
from octavo.models.config import ModelConfig
from octavo.models.interface import ModelInputs
from octavo.models.layers import MLP, Attention, LayerLoader
from octavo.models.weights import ModelWeights, embedding_and_head


@dataclass(frozen=True, slots=True)
class _Layer:
    attention: Attention
    attention_norm: Tensor
    mlp: MLP
    mlp_norm: Tensor


class Gemma3:
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x))), in every layer."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, ops: Ops) -> None:
        self.config = config
        self._ops = ops
        self._embedding, self._head = embedding_and_head(ops, weights, config)

        def read_norm(name: str) -> Tensor:
            """Gemma checkpoints store how far a norm's weight is from 1."""
            return 1.0 + weights[name]

        load = LayerLoader(config, weights, ops, read_norm)
        self._layers = [
            _Layer(
                attention=load.attention(index, names.INPUT_NORM),
                attention_norm=load.norm(index, names.POST_ATTENTION_NORM),
                mlp=load.mlp(index, names.PRE_FEEDFORWARD_NORM),
                mlp_norm=load.norm(index, names.POST_FEEDFORWARD_NORM),
            )
            for index in range(config.num_layers)
        ]
        self._norm = read_norm(names.FINAL_NORM)

    def forward(self, inputs: ModelInputs) -> Tensor:
        """Hidden states fp32 [N, hidden_size] of ``inputs.head_rows``, as ``head`` takes them."""
        ops, eps = self._ops, self.config.norm_eps
        x = ops.embed(self._embedding, inputs.token_ids, self.config.embedding_scale)
        for layer, (kv, batch) in zip(self._layers, inputs.kv, strict=True):
            x = ops.add(x, ops.norm(layer.attention(ops, x, kv, batch), layer.attention_norm, eps))
            x = ops.add(x, ops.norm(layer.mlp(ops, x), layer.mlp_norm, eps))
        return ops.take_rows(x, inputs.head_rows)

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Rows of what ``forward`` gave, after the final norm: fp32 [n, hidden_size]."""
        return self._ops.norm(hidden, self._norm, self.config.norm_eps)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits fp32 [n, vocab_size] of rows of what ``forward`` gave."""
        return self._ops.linear(self.final_norm(hidden), self._head)
