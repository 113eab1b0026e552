"""The names and shapes of a decoder's weights, those of the Hugging Face checkpoints; without torch."""

from octavo.models.config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
INPUT_NORM = "input_layernorm.weight"
POST_ATTENTION_NORM = "post_attention_layernorm.weight"
PRE_FEEDFORWARD_NORM = "pre_feedforward_layernorm.weight"
POST_FEEDFORWARD_NORM = "post_feedforward_layernorm.weight"
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
OUTPUT = "self_attn.o_proj"
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
DOWN = "mlp.down_proj"
QK_NORMS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")


def layer_prefix(index: int) -> str:
    return f"model.layers.{index}."


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every weight that the model needs, by name."""
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocab_size, config.hidden_size),
        FINAL_NORM: (config.hidden_size,),
    }
    if not config.tie_embeddings:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    for index in range(config.num_layers):
        prefix = layer_prefix(index)
        shapes |= {prefix + name: shape for name, shape in _layer_shapes(config).items()}
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    norms = [INPUT_NORM, POST_ATTENTION_NORM]
    if config.architecture == "gemma3":
        norms += [PRE_FEEDFORWARD_NORM, POST_FEEDFORWARD_NORM]
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(norms, (hidden,))
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
