"""What a model is, whatever file it came from: the one description that models, runner and loading share."""

from dataclasses import dataclass
from typing import Literal

from octavo.kernels.kinds import Activation


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position settings of one kind of layer. ``kind`` "llama3" uses all four numbers after ``factor``;
    "divisors" divides each frequency by its entry of ``divisors`` (head_dim / 2 numbers, as GGUF files store them)."""

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3", "divisors"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """One layer's attention kind: ``window`` None sees everything before it."""

    window: int | None
    rope: RopeConfig


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Numbers that fix a model's forward pass and the shape of its KV memory."""

    architecture: Literal["llama", "mistral", "qwen2", "qwen3", "gemma3"]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_position: int
    layers: tuple[LayerConfig, ...]
    activation: Activation = "silu"
    tie_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    attention_scale: float | None = None
    attention_soft_cap: float | None = None
    embedding_scale: float = 1.0

    @property
    def scale(self) -> float:
        """Factor on attention scores: ``attention_scale`` if the config gives one, else 1 / sqrt(head_dim)."""
        return self.attention_scale if self.attention_scale is not None else self.head_dim**-0.5
