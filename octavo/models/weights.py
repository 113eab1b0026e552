"""What the model files share: the names and shapes of a decoder's weights, and merging projections into one."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from octavo.kernels.interface import AttentionSpec, Linear, Ops
from octavo.kernels.quantized import QuantizedWeight, stack_rows
from octavo.models.config import LayerConfig, ModelConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
OUTPUT = "self_attn.o_proj"
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
DOWN = "mlp.down_proj"
QK_NORMS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")


class ModelWeights(Mapping[str, Tensor]):
    """The weights of a model by canonical name, fp32; matrices also as they are to be multiplied."""

    @abstractmethod
    def matrix(self, name: str) -> Tensor | QuantizedWeight:
        """A matrix [out, in] for a linear or an embedding table: quantised where it is stored so and may stay so."""
        ...


def layer_prefix(index: int) -> str:
    return f"model.layers.{index}."


def decoder_weight_shapes(config: ModelConfig, norms: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of every weight; ``norms`` are the names of the RMS norms over the hidden state in a layer."""
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocab_size, config.hidden_size),
        FINAL_NORM: (config.hidden_size,),
    }
    if not config.tie_embeddings:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    for index in range(config.num_layers):
        prefix = layer_prefix(index)
        shapes |= dict.fromkeys((prefix + name for name in norms), (config.hidden_size,))
        shapes |= {prefix + name: shape for name, shape in _layer_shapes(config).items()}
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {}
    for name, size in zip(QKV, (q_size, kv_size, kv_size), strict=True):
        shapes |= _linear_shapes(name, (size, hidden), config.qkv_bias)
    shapes |= _linear_shapes(OUTPUT, (hidden, q_size), config.output_bias)
    for name in GATE_UP:
        shapes |= _linear_shapes(name, (inner, hidden), config.mlp_bias)
    shapes |= _linear_shapes(DOWN, (hidden, inner), config.mlp_bias)
    if config.qk_norm:
        shapes |= dict.fromkeys(QK_NORMS, (config.head_dim,))
    return shapes


def _linear_shapes(name: str, shape: tuple[int, int], bias: bool) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape} | ({f"{name}.bias": shape[:1]} if bias else {})


def merged_linear(ops: Ops, weights: ModelWeights, names: Sequence[str]) -> Linear:
    """One linear whose outputs are those of ``names`` side by side; all of them have a bias, or none."""
    biases = [weights[f"{name}.bias"] for name in names if f"{name}.bias" in weights]
    weight = stack_rows([weights.matrix(f"{name}.weight") for name in names])
    return ops.make_linear(weight, torch.cat(biases) if biases else None)


def embedding_and_head(ops: Ops, weights: ModelWeights, config: ModelConfig) -> tuple[Tensor | Linear, Linear]:
    """The table as ``Ops.embed`` takes it, and the head; one linear for both where they are tied and quantised."""
    table = weights.matrix(EMBEDDING)
    head = ops.make_linear(table if config.tie_embeddings else weights.matrix(HEAD))
    if isinstance(table, Tensor):
        return table, head
    return head if config.tie_embeddings else ops.make_linear(table), head


def attention_spec(config: ModelConfig, layer: LayerConfig) -> AttentionSpec:
    return AttentionSpec(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        scale=config.scale,
        window=layer.window,
        soft_cap=config.attention_soft_cap,
    )
