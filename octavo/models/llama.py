"""The Llama architecture and its near relatives: Llama, SmolLM2, Mistral (sliding window), Qwen2 (biases on queries,
keys and values), Qwen3 (a norm on each query and key head)."""

from torch import Tensor

from octavo.kernels.interface import Ops
from octavo.models import names
from octavo.models.config import ModelConfig
from octavo.models.interface import ModelInputs
from octavo.models.layers import LayerLoader
from octavo.models.weights import ModelWeights, embedding_and_head


class Llama:
    """Pre-norm decoder: x + attention(norm(x)), then x + mlp(norm(x)), in every layer."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, ops: Ops) -> None:
        self.config = config
        self._ops = ops
        self._embedding, self._head = embedding_and_head(ops, weights, config)
        load = LayerLoader(config, weights, ops, weights.__getitem__)
        self._layers = [
            (load.attention(index, names.INPUT_NORM), load.mlp(index, names.POST_ATTENTION_NORM))
            for index in range(config.num_layers)
        ]
        self._norm = weights[names.FINAL_NORM]

    def forward(self, inputs: ModelInputs) -> Tensor:
        """Hidden states fp32 [N, hidden_size] of ``inputs.head_rows``, as ``head`` takes them."""
        ops = self._ops
        x = ops.embed(self._embedding, inputs.token_ids)
        for (attention, mlp), (kv, batch) in zip(self._layers, inputs.kv, strict=True):
            x = ops.add(x, attention(ops, x, kv, batch))
            x = ops.add(x, mlp(ops, x))
        return ops.take_rows(x, inputs.head_rows)

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Rows of what ``forward`` gave, after the final norm: fp32 [n, hidden_size]."""
        return self._ops.norm(hidden, self._norm, self.config.norm_eps)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits fp32 [n, vocab_size] of rows of what ``forward`` gave."""
        return self._ops.linear(self.final_norm(hidden), self._head)
