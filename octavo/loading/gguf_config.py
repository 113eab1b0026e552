"""GGUF metadata -> ``ModelConfig``. Keys and defaults follow llama.cpp (``gguf-py/gguf/constants.py``)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from octavo.core.errors import ConfigurationError
from octavo.loading.unsupported import MAX_LAYERS, refuse_unsupported_gguf
from octavo.models.config import LayerConfig, ModelConfig, RopeConfig

Architecture = Literal["llama", "qwen2", "qwen3", "gemma3"]
ARCHITECTURES: tuple[Architecture, ...] = ("llama", "qwen2", "qwen3", "gemma3")
ROPE_FREQS = "rope_freqs.weight"

# llama.cpp gives each model of the family its score scale by its depth: the 27B model divides by hidden / heads.
_GEMMA3_27B_LAYERS = 62


class _Settings:
    """The metadata of one architecture, with types checked."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self._metadata = metadata
        self._prefix = architecture + "."

    def get(self, key: str) -> Any:
        return self._metadata.get(self._prefix + key)

    def real(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]  # one number a layer, all alike
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or not math.isfinite(value):
            got = "nothing" if value is None else f"{value!r:.60}"
            raise ConfigurationError(f"GGUF metadata: {self._prefix}{key} must be one number, got {got}")
        return float(value)

    def whole(self, key: str, default: int | None = None, at_least: int = 1) -> int:
        value = self.real(key, default)
        if value != int(value) or value < at_least:
            raise ConfigurationError(
                f"GGUF metadata: {self._prefix}{key} must be a whole number of at least {at_least}, got {value:g}"
            )
        return int(value)


def gguf_architecture(metadata: Mapping[str, Any]) -> Architecture:
    """
    Raises:
        ConfigurationError: no architecture, or one that is not supported.
    """
    name = metadata.get("general.architecture")
    for architecture in ARCHITECTURES:
        if name == architecture:
            return architecture
    raise ConfigurationError(
        f"GGUF architecture {name!r:.60} is not supported; supported: {', '.join(ARCHITECTURES)} (llama covers "
        "Mistral and SmolLM2)"
    )


def gguf_model_config(
    metadata: Mapping[str, Any], vocab_size: int, tensor_names: set[str], rope_freqs: Sequence[float] | None
) -> ModelConfig:
    """The description of the model in a GGUF file.

    ``vocab_size`` is the number of rows of the embedding; ``tensor_names`` are the file's (they show biases and
    ties, which metadata do not hold); ``rope_freqs``: the numbers of tensor ``rope_freqs.weight`` (Llama 3.1 scaling).

    Raises:
        ConfigurationError: a number is missing or wrong, or a setting that changes results is not supported.
    """
    architecture = gguf_architecture(metadata)
    settings = _Settings(metadata, architecture)
    refuse_unsupported_gguf(metadata, architecture + ".")
    num_heads = settings.whole("attention.head_count")
    hidden_size = settings.whole("embedding_length")
    head_dim = settings.whole("attention.key_length", hidden_size // num_heads)
    _check_head_sizes(settings, architecture, head_dim)
    num_kv_heads = settings.whole("attention.head_count_kv", num_heads)
    num_layers = settings.whole("block_count")
    if num_layers > MAX_LAYERS:
        raise ConfigurationError(
            f"GGUF metadata: {architecture}.block_count is {num_layers}; at most {MAX_LAYERS} layers are supported"
        )
    gemma = architecture == "gemma3"
    scale_dim = hidden_size // num_heads if num_layers == _GEMMA3_27B_LAYERS else head_dim
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=settings.whole("feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=settings.real("attention.layer_norm_rms_epsilon"),
        max_position=settings.whole("context_length"),
        layers=_layers(settings, architecture, num_layers, _rope(settings, gemma, rope_freqs)),
        activation="gelu_tanh" if gemma else "silu",
        tie_embeddings="output.weight" not in tensor_names,
        qkv_bias="blk.0.attn_q.bias" in tensor_names,
        output_bias="blk.0.attn_output.bias" in tensor_names,
        mlp_bias="blk.0.ffn_down.bias" in tensor_names,
        qk_norm=architecture in ("qwen3", "gemma3"),
        attention_scale=scale_dim**-0.5 if gemma else None,
        embedding_scale=math.sqrt(hidden_size) if gemma else 1.0,
    )


def _check_head_sizes(settings: _Settings, architecture: str, head_dim: int) -> None:
    for key in ("attention.value_length", "rope.dimension_count"):
        size = settings.whole(key, head_dim)
        if size != head_dim:
            raise ConfigurationError(
                f"GGUF metadata: {architecture}.{key} is {size}, but heads have {head_dim} numbers; "
                "only equal sizes are supported"
            )


def _rope(settings: _Settings, gemma: bool, rope_freqs: Sequence[float] | None) -> RopeConfig:
    """Settings of the layers without a window."""
    theta = settings.real("rope.freq_base", 1_000_000.0 if gemma else 10_000.0)
    kind = settings.get("rope.scaling.type")
    if kind not in (None, "none", "linear"):
        raise ConfigurationError(f"GGUF metadata: rope scaling {kind!r:.60} is not supported; known: none, linear")
    factor = settings.real("rope.scaling.factor", 1.0) if kind == "linear" else 1.0
    if factor < 1.0:
        raise ConfigurationError(f"GGUF metadata: the rope scaling factor must be at least 1, got {factor:g}")
    if rope_freqs is not None:
        return RopeConfig(theta=theta, kind="divisors", divisors=tuple(x * factor for x in rope_freqs))
    if factor != 1.0:
        return RopeConfig(theta=theta, kind="linear", factor=factor)
    return RopeConfig(theta=theta)


def _layers(
    settings: _Settings, architecture: Architecture, num_layers: int, rope: RopeConfig
) -> tuple[LayerConfig, ...]:
    window = settings.whole("attention.sliding_window", 0, at_least=0) or None
    if architecture != "gemma3":
        if window is not None and architecture != "llama":
            raise ConfigurationError(
                f"GGUF metadata: {architecture}.attention.sliding_window ({window}) is not supported, because the file "
                "does not say which layers have it"
            )
        return (LayerConfig(window, rope),) * num_layers
    local = LayerConfig(window, RopeConfig(theta=settings.real("rope.freq_base_swa", 10_000.0)))
    pattern = settings.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        if len(pattern) != num_layers:
            raise ConfigurationError(
                f"GGUF metadata: {architecture}.attention.sliding_window_pattern has {len(pattern)} entries for "
                f"{num_layers} layers"
            )
        sliding = [bool(x) for x in pattern]
    else:
        period = settings.whole("attention.sliding_window_pattern", 6)
        sliding = [bool((index + 1) % period) for index in range(num_layers)]
    return tuple(local if is_sliding else LayerConfig(None, rope) for is_sliding in sliding)
