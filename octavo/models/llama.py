"""The Llama architecture and its near relatives: Llama, SmolLM2, Mistral (sliding window), Qwen2 (biases on queries,
keys and values), Qwen3 (a norm on each query and key head)."""

from dataclasses import dataclass

from torch import Tensor

from octavo.kernels.interface import AttentionSpec, BatchLayout, KVLayer, Linear, Ops, RopeTable
from octavo.models import weights as names
from octavo.models.config import ModelConfig
from octavo.models.interface import ModelInputs
from octavo.models.rope import rope_tables
from octavo.models.weights import (
    ModelWeights,
    attention_spec,
    decoder_weight_shapes,
    embedding_and_head,
    layer_prefix,
    merged_linear,
)

ATTENTION_NORM = "input_layernorm.weight"
MLP_NORM = "post_attention_layernorm.weight"


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Tensor
    qkv: Linear
    qk_norms: tuple[Tensor, Tensor] | None
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    rope: RopeTable
    spec: AttentionSpec


class Llama:
    """Pre-norm decoder: x + attention(norm(x)), then x + mlp(norm(x)), in every layer."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, ops: Ops) -> None:
        self.config = config
        self._ops = ops
        self._ropes = rope_tables(config)
        self._embedding, self._head = embedding_and_head(ops, weights, config)
        self._layers = [self._make_layer(index, weights) for index in range(config.num_layers)]
        self._norm = weights[names.FINAL_NORM]

    @staticmethod
    def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
        return decoder_weight_shapes(config, norms=(ATTENTION_NORM, MLP_NORM))

    def _make_layer(self, index: int, weights: ModelWeights) -> _Layer:
        prefix = layer_prefix(index)
        q_norm, k_norm = (prefix + name for name in names.QK_NORMS)
        layer = self.config.layers[index]
        return _Layer(
            attention_norm=weights[prefix + ATTENTION_NORM],
            qkv=merged_linear(self._ops, weights, [prefix + name for name in names.QKV]),
            qk_norms=(weights[q_norm], weights[k_norm]) if self.config.qk_norm else None,
            output=merged_linear(self._ops, weights, [prefix + names.OUTPUT]),
            mlp_norm=weights[prefix + MLP_NORM],
            gate_up=merged_linear(self._ops, weights, [prefix + name for name in names.GATE_UP]),
            down=merged_linear(self._ops, weights, [prefix + names.DOWN]),
            rope=self._ropes[layer.rope],
            spec=attention_spec(self.config, layer),
        )

    def forward(self, inputs: ModelInputs) -> Tensor:
        """Hidden states fp32 [N, hidden_size] of ``inputs.head_rows``, as ``head`` takes them."""
        ops = self._ops
        x = ops.embed(self._embedding, inputs.token_ids)
        for layer, (kv, batch) in zip(self._layers, inputs.kv, strict=True):
            x = ops.add(x, self._attention(layer, x, kv, batch))
            x = ops.add(x, self._mlp(layer, x))
        return ops.take_rows(x, inputs.head_rows)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits fp32 [n, vocab_size] of rows of what ``forward`` gave."""
        return self._ops.linear(self._ops.norm(hidden, self._norm, self.config.norm_eps), self._head)

    def _attention(self, layer: _Layer, x: Tensor, kv: KVLayer, batch: BatchLayout) -> Tensor:
        ops, eps = self._ops, self.config.norm_eps
        qkv = ops.linear(ops.norm(x, layer.attention_norm, eps), layer.qkv)
        if layer.qk_norms is not None:
            qkv = ops.norm_heads(qkv, *layer.qk_norms, eps, layer.spec)
        q = ops.rotate_and_write_kv(qkv, layer.rope, kv, batch, layer.spec)
        return ops.linear(ops.attention(q, kv, batch, layer.spec), layer.output)

    def _mlp(self, layer: _Layer, x: Tensor) -> Tensor:
        ops = self._ops
        gate_up = ops.linear(ops.norm(x, layer.mlp_norm, self.config.norm_eps), layer.gate_up)
        return ops.linear(ops.gate(gate_up, self.config.activation), layer.down)
