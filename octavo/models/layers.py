"""What the layers of these architectures have in common: attention and a gated MLP, each after its norm.

How the two are joined to the hidden state, and what else is normed, is an architecture's own, and stands in its file.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from octavo.kernels.interface import AttentionSpec, BatchLayout, KVLayer, Linear, Ops, RopeTable
from octavo.kernels.kinds import Activation
from octavo.models import names
from octavo.models.config import LayerConfig, ModelConfig, RopeConfig
from octavo.models.rope import rope_tables
from octavo.models.weights import ModelWeights, merged_linear

ReadNorm = Callable[[str], Tensor]
"""The weight of a norm, by name, as ``Ops.norm`` multiplies with it."""


@dataclass(frozen=True, slots=True)
class Attention:
    """output(attention(rotate(qkv(norm(x))))), with a norm on each query and key head where the model has them."""

    norm: Tensor
    qkv: Linear
    qk_norms: tuple[Tensor, Tensor] | None
    output: Linear
    rope: RopeTable
    spec: AttentionSpec
    eps: float

    def __call__(self, ops: Ops, x: Tensor, kv: KVLayer, batch: BatchLayout) -> Tensor:
        """Of hidden states fp32 [R, hidden_size], which may see what the KV memory holds before them."""
        qkv = ops.linear(ops.norm(x, self.norm, self.eps), self.qkv)
        if self.qk_norms is not None:
            qkv = ops.norm_heads(qkv, *self.qk_norms, self.eps, self.spec)
        q = ops.rotate_and_write_kv(qkv, self.rope, kv, batch, self.spec)
        return ops.linear(ops.attention(q, kv, batch, self.spec), self.output)


@dataclass(frozen=True, slots=True)
class MLP:
    """down(activation(gate(norm(x))) * up(norm(x)))."""

    norm: Tensor
    gate_up: Linear
    down: Linear
    activation: Activation
    eps: float

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        """Of hidden states fp32 [R, hidden_size]."""
        gate_up = ops.linear(ops.norm(x, self.norm, self.eps), self.gate_up)
        return ops.linear(ops.gate(gate_up, self.activation), self.down)


class LayerLoader:
    """Makes the parts of each layer from a model's weights; angle tables are shared by the layers of one kind."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, ops: Ops, read_norm: ReadNorm) -> None:
        self._config = config
        self._weights = weights
        self._ops = ops
        self._read_norm = read_norm
        self._ropes: dict[RopeConfig, RopeTable] = rope_tables(config)

    def norm(self, index: int, name: str) -> Tensor:
        return self._read_norm(names.layer_prefix(index) + name)

    def attention(self, index: int, norm: str) -> Attention:
        """``norm``: the name of the one before it."""
        layer = self._config.layers[index]
        q_norm, k_norm = names.QK_NORMS
        return Attention(
            norm=self.norm(index, norm),
            qkv=self._linear(index, *names.QKV),
            qk_norms=(self.norm(index, q_norm), self.norm(index, k_norm)) if self._config.qk_norm else None,
            output=self._linear(index, names.OUTPUT),
            rope=self._ropes[layer.rope],
            spec=attention_spec(self._config, layer),
            eps=self._config.norm_eps,
        )

    def mlp(self, index: int, norm: str) -> MLP:
        """``norm``: the name of the one before it."""
        return MLP(
            norm=self.norm(index, norm),
            gate_up=self._linear(index, *names.GATE_UP),
            down=self._linear(index, names.DOWN),
            activation=self._config.activation,
            eps=self._config.norm_eps,
        )

    def _linear(self, index: int, *parts: str) -> Linear:
        prefix = names.layer_prefix(index)
        return merged_linear(self._ops, self._weights, [prefix + name for name in parts])


def attention_spec(config: ModelConfig, layer: LayerConfig) -> AttentionSpec:
    return AttentionSpec(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        scale=config.scale,
        window=layer.window,
        soft_cap=config.attention_soft_cap,
    )
