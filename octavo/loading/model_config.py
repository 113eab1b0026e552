"""config.json of a Hugging Face folder -> ``ModelConfig``, with the meaning that ``transformers`` gives each field."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from octavo.core.errors import ConfigurationError
from octavo.kernels.kinds import Activation
from octavo.loading.rope_config import gemma3_rope, uniform_rope
from octavo.loading.unsupported import MAX_LAYERS, refuse_unsupported_config
from octavo.models.config import LayerConfig, ModelConfig

Architecture = Literal["llama", "mistral", "qwen2", "qwen3", "gemma3"]

# model_type -> (architecture, class name in "architectures")
_MODEL_TYPES: dict[str, tuple[Architecture, str]] = {
    "llama": ("llama", "LlamaForCausalLM"),
    "mistral": ("mistral", "MistralForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "gemma3_text": ("gemma3", "Gemma3ForCausalLM"),
}
SUPPORTED = ", ".join(name for _, name in _MODEL_TYPES.values())

# Defaults of the configuration classes of transformers, where a file leaves a field out.
_DEFAULTS: dict[Architecture, dict[str, Any]] = {
    "llama": {"max_position_embeddings": 2048, "sliding_window": None},
    "mistral": {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "sliding_window": 4096},
    "qwen3": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "sliding_window": 4096, "head_dim": 128},
    "gemma3": {
        "max_position_embeddings": 131072,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "head_dim": 256,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh",
    },
}

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}

# Which optional fields an architecture of transformers honours; elsewhere a true value would be ignored there.
_HONOURS = {
    "attention_bias": {"llama", "qwen3", "gemma3"},
    "mlp_bias": {"llama"},
    "use_sliding_window": {"qwen2", "qwen3"},
}

Positive = Annotated[int, Meta(gt=0, lt=2**31)]
PositiveReal = Annotated[float, Meta(gt=0)]


class _Fields(msgspec.Struct, kw_only=True):
    """The fields of a config.json that describe a decoder, with their types."""

    vocab_size: Positive
    hidden_size: Positive
    intermediate_size: Positive
    num_hidden_layers: Annotated[int, Meta(gt=0, le=MAX_LAYERS)]
    num_attention_heads: Positive
    max_position_embeddings: Positive
    num_key_value_heads: Positive | None = None
    head_dim: Positive | None = None
    rms_norm_eps: PositiveReal = 1e-6
    hidden_act: str = "silu"
    hidden_activation: str | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    query_pre_attn_scalar: PositiveReal | None = None
    sliding_window: Positive | None = None
    use_sliding_window: bool | None = None
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    sliding_window_pattern: Positive = 6


def read_model_config(folder: Path) -> ModelConfig:
    """The description of the model in ``folder``.

    Raises:
        ConfigurationError: config.json is missing or broken, names an unknown architecture, or holds a field that
            changes results and is not supported.
    """
    return parse_model_config(read_json(folder / "config.json"))


def parse_model_config(raw: Mapping[str, Any]) -> ModelConfig:
    """``read_model_config`` of a parsed file."""
    architecture = _architecture(raw)
    refuse_unsupported_config(raw)
    for field, honoured in _HONOURS.items():
        if raw.get(field) is True and architecture not in honoured:
            raise ConfigurationError(f"config.json: {field} true is not supported for {architecture} models")
    try:
        fields = msgspec.convert(_DEFAULTS[architecture] | dict(raw), _Fields)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"config.json: {error}") from error
    head_dim, num_kv_heads = _check_heads(fields)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.vocab_size,
        hidden_size=fields.hidden_size,
        intermediate_size=fields.intermediate_size,
        num_layers=fields.num_hidden_layers,
        num_heads=fields.num_attention_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=fields.rms_norm_eps,
        max_position=fields.max_position_embeddings,
        layers=_layers(architecture, fields, raw),
        activation=_activation(architecture, fields),
        tie_embeddings=fields.tie_word_embeddings,
        qkv_bias=architecture == "qwen2" or fields.attention_bias,
        output_bias=fields.attention_bias,
        mlp_bias=fields.mlp_bias,
        qk_norm=architecture in ("qwen3", "gemma3"),
        attention_scale=_attention_scale(architecture, fields),
        embedding_scale=math.sqrt(fields.hidden_size) if architecture == "gemma3" else 1.0,
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a model folder.

    Raises:
        ConfigurationError: the file is missing, unreadable, or holds anything but an object.
    """
    try:
        # The json module and not msgspec's: like transformers it accepts NaN and Infinity, which some configs hold.
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path} does not exist; a model folder needs it") from error
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not valid JSON ({error}); fetch the model again") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path} must hold a JSON object; fetch the model again")
    return value


def _architecture(raw: Mapping[str, Any]) -> Architecture:
    classes, model_type = raw.get("architectures"), raw.get("model_type")
    name = classes[0] if isinstance(classes, list) and classes else None
    for known_type, (architecture, known_class) in _MODEL_TYPES.items():
        if (name in (None, known_class)) and model_type == known_type:
            return architecture
        if name == known_class and model_type is None:
            return architecture
    shown = " with model_type ".join(str(x) for x in (name, model_type) if x is not None) or "(none named)"
    raise ConfigurationError(f"config.json: architecture {shown:.120} is not supported; supported: {SUPPORTED}")


def _check_heads(fields: _Fields) -> tuple[int, int]:
    """(head_dim, num_kv_heads), checked against the other sizes."""
    heads = fields.num_attention_heads
    kv_heads = fields.num_key_value_heads or heads
    if heads % kv_heads:
        raise ConfigurationError(
            f"config.json: num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv_heads})"
        )
    head_dim = fields.head_dim or fields.hidden_size // heads
    if head_dim < 2 or head_dim % 2:
        raise ConfigurationError(f"config.json: head_dim must be even and at least 2, got {head_dim}")
    return head_dim, kv_heads


def _attention_scale(architecture: Architecture, fields: _Fields) -> float | None:
    if architecture != "gemma3" or fields.query_pre_attn_scalar is None:
        return None
    return float(fields.query_pre_attn_scalar**-0.5)


def _activation(architecture: Architecture, fields: _Fields) -> Activation:
    # Gemma 3 files also carry a hidden_act, which transformers does not read.
    name = fields.hidden_activation if architecture == "gemma3" else fields.hidden_act
    if name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise ConfigurationError(f"config.json: activation {name!r:.60} is not supported; supported: {known}")
    return _ACTIVATIONS[name]


def _layers(architecture: Architecture, fields: _Fields, raw: Mapping[str, Any]) -> tuple[LayerConfig, ...]:
    sliding = _sliding_layers(architecture, fields)
    if any(sliding) and fields.sliding_window is None:
        raise ConfigurationError("config.json: sliding_window is null although some layers are sliding_attention")
    if architecture == "gemma3":
        full_rope, sliding_rope = gemma3_rope(raw)
    else:
        full_rope = sliding_rope = uniform_rope(raw)
    window = LayerConfig(fields.sliding_window, sliding_rope)
    full = LayerConfig(None, full_rope)
    return tuple(window if is_sliding else full for is_sliding in sliding)


def _sliding_layers(architecture: Architecture, fields: _Fields) -> list[bool]:
    """For each layer, whether it sees a window only."""
    count = fields.num_hidden_layers
    implied = _implied_sliding(architecture, fields)
    if fields.layer_types is None:
        return implied
    unknown = set(fields.layer_types) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ConfigurationError(f"config.json: layer_types holds {min(unknown)!r:.60}, which is not supported")
    if len(fields.layer_types) != count:
        raise ConfigurationError(
            f"config.json: layer_types has {len(fields.layer_types)} entries for num_hidden_layers {count}"
        )
    listed = [kind == "sliding_attention" for kind in fields.layer_types]
    if architecture in ("llama", "mistral") and listed != implied:
        raise ConfigurationError(f"config.json: layer_types of mixed kinds is not supported for {architecture} models")
    if architecture in ("qwen2", "qwen3") and any(listed) and not fields.use_sliding_window:
        raise ConfigurationError("config.json: layer_types has sliding_attention although use_sliding_window is false")
    return listed


def _implied_sliding(architecture: Architecture, fields: _Fields) -> list[bool]:
    count, window = fields.num_hidden_layers, fields.sliding_window
    match architecture:
        case "llama":
            if window is not None and fields.use_sliding_window is not False:
                raise ConfigurationError(f"config.json: sliding_window ({window}) is not supported for llama models")
            return [False] * count
        case "mistral":
            return [window is not None] * count
        case "gemma3":
            return [bool((index + 1) % fields.sliding_window_pattern) for index in range(count)]
        case "qwen2" | "qwen3":
            on = bool(fields.use_sliding_window) and window is not None
            return [on and index >= fields.max_window_layers for index in range(count)]
