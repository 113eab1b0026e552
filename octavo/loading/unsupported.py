"""Settings of model files that change results and are not implemented: refused by name (DECISION D31)."""

from collections.abc import Mapping
from typing import Any

from octavo.core.errors import ConfigurationError

MAX_LAYERS = 4096
"""Far above any model there is; a nonsense number would only fill the memory with names of tensors."""

# Field of a config.json -> the values under which it changes nothing. None and an absent field change nothing either.
_CONFIG_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "alibi": (False,),
    "attention_chunk_size": (),
    "attention_multiplier": (),
    "attention_sinks": (False,),
    "attn_logit_softcapping": (),
    "attn_temperature_tuning": (False, 0),
    "clip_qkv": (),
    "compression_config": (),
    "cross_attention_layers": ([],),
    "dim_model_base": (),
    "embedding_multiplier": (1,),
    "final_logit_softcapping": (),
    "first_k_dense_replace": (),
    "is_causal": (True,),
    "key_multiplier": (1,),
    "kv_lora_rank": (),
    "lm_head_multiplier": (1,),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "lora_rank": (),
    "n_routed_experts": (0,),
    "no_rope_layer_interval": (0,),
    "no_rope_layers": ([],),
    "num_experts": (0,),
    "num_experts_per_tok": (0,),
    "num_local_experts": (0,),
    "parallel_attn": (False,),
    "parallel_residual": (False,),
    "partial_rotary_factor": (1,),
    "position_embedding_type": ("rope", "rotary", "absolute"),
    "qk_layernorm": (False,),
    "qkv_clip": (),
    "quantization_config": (),
    "residual_multiplier": (1,),
    "rope_interleave": (False,),
    "rope_interleaved": (False,),
    "rope_ratio": (1,),
    "rotary_emb_fraction": (1,),
    "rotary_pct": (1,),
    "scale_depth": (),
    "scale_emb": (1,),
    "use_alibi": (False,),
    "use_bidirectional_attention": (False,),
    "use_parallel_residual": (False,),
    "use_qk_norm": (False,),
    "vision_config": (),
}

# The same for GGUF metadata, below the prefix of the architecture ("llama.").
_GGUF_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.output_scale": (1,),
    "attention.scale": (),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (1,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "final_logit_softcapping": (0,),
    "interleave_moe_layer_step": (0,),
    "logit_scale": (0, 1),
    "no_rope_layer_interval": (0,),
    "pooling_type": (0,),
    "residual_scale": (1,),
    "rope.scaling.attn_factor": (1,),
    "rope.scale_linear": (1,),
    "use_parallel_residual": (False,),
}


def refuse_unsupported_config(raw: Mapping[str, Any]) -> None:
    """Refuse a config.json with a field that the models here do not honour.

    Raises:
        ConfigurationError: names the field and its value.
    """
    _refuse("config.json", raw, _CONFIG_NEUTRAL)


def refuse_unsupported_gguf(metadata: Mapping[str, Any], prefix: str) -> None:
    """The same for GGUF metadata; ``prefix`` is the architecture's, such as "llama."."""
    settings = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    _refuse(f"GGUF metadata {prefix}*", settings, _GGUF_NEUTRAL)


def _refuse(source: str, settings: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> None:
    for name, values in neutral.items():
        value = settings.get(name)
        if value is not None and value not in values:
            raise ConfigurationError(
                f"{source}: {name} is {value!r:.80}, which would change the results and is not supported; "
                "use a model without it"
            )
