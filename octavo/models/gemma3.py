"""Gemma 3, text only: norms before and after each half of a layer, scaled embeddings, windows on most layers."""

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
AFTER_ATTENTION_NORM = "post_attention_layernorm.weight"
MLP_NORM = "pre_feedforward_layernorm.weight"
AFTER_MLP_NORM = "post_feedforward_layernorm.weight"


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Tensor
    qkv: Linear
    q_norm: Tensor
    k_norm: Tensor
    output: Linear
    after_attention_norm: Tensor
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    after_mlp_norm: Tensor
    rope: RopeTable
    spec: AttentionSpec


class Gemma3:
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x))), in every layer."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, ops: Ops) -> None:
        self.config = config
        self._ops = ops
        self._ropes = rope_tables(config)
        self._embedding, self._head = embedding_and_head(ops, weights, config)
        self._layers = [self._make_layer(index, weights) for index in range(config.num_layers)]
        self._norm = _norm_weight(weights, names.FINAL_NORM)

    @staticmethod
    def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
        return decoder_weight_shapes(config, norms=(ATTENTION_NORM, AFTER_ATTENTION_NORM, MLP_NORM, AFTER_MLP_NORM))

    def _make_layer(self, index: int, weights: ModelWeights) -> _Layer:
        prefix = layer_prefix(index)
        q_norm, k_norm = (prefix + name for name in names.QK_NORMS)
        layer = self.config.layers[index]
        return _Layer(
            attention_norm=_norm_weight(weights, prefix + ATTENTION_NORM),
            qkv=merged_linear(self._ops, weights, [prefix + name for name in names.QKV]),
            q_norm=_norm_weight(weights, q_norm),
            k_norm=_norm_weight(weights, k_norm),
            output=merged_linear(self._ops, weights, [prefix + names.OUTPUT]),
            after_attention_norm=_norm_weight(weights, prefix + AFTER_ATTENTION_NORM),
            mlp_norm=_norm_weight(weights, prefix + MLP_NORM),
            gate_up=merged_linear(self._ops, weights, [prefix + name for name in names.GATE_UP]),
            down=merged_linear(self._ops, weights, [prefix + names.DOWN]),
            after_mlp_norm=_norm_weight(weights, prefix + AFTER_MLP_NORM),
            rope=self._ropes[layer.rope],
            spec=attention_spec(self.config, layer),
        )

    def forward(self, inputs: ModelInputs) -> Tensor:
        """Hidden states fp32 [N, hidden_size] of ``inputs.head_rows``, as ``head`` takes them."""
        ops, eps = self._ops, self.config.norm_eps
        x = ops.embed(self._embedding, inputs.token_ids, self.config.embedding_scale)
        for layer, (kv, batch) in zip(self._layers, inputs.kv, strict=True):
            x = ops.add(x, ops.norm(self._attention(layer, x, kv, batch), layer.after_attention_norm, eps))
            x = ops.add(x, ops.norm(self._mlp(layer, x), layer.after_mlp_norm, eps))
        return ops.take_rows(x, inputs.head_rows)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits fp32 [n, vocab_size] of rows of what ``forward`` gave."""
        return self._ops.linear(self._ops.norm(hidden, self._norm, self.config.norm_eps), self._head)

    def _attention(self, layer: _Layer, x: Tensor, kv: KVLayer, batch: BatchLayout) -> Tensor:
        ops, eps = self._ops, self.config.norm_eps
        qkv = ops.linear(ops.norm(x, layer.attention_norm, eps), layer.qkv)
        qkv = ops.norm_heads(qkv, layer.q_norm, layer.k_norm, eps, layer.spec)
        q = ops.rotate_and_write_kv(qkv, layer.rope, kv, batch, layer.spec)
        return ops.linear(ops.attention(q, kv, batch, layer.spec), layer.output)

    def _mlp(self, layer: _Layer, x: Tensor) -> Tensor:
        ops = self._ops
        gate_up = ops.linear(ops.norm(x, layer.mlp_norm, self.config.norm_eps), layer.gate_up)
        return ops.linear(ops.gate(gate_up, self.config.activation), layer.down)


def _norm_weight(weights: ModelWeights, name: str) -> Tensor:
    """Gemma checkpoints store how far a norm's weight is from 1."""
    return 1.0 + weights[name]
