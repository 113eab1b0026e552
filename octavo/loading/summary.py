"""What a model is and costs, from headers alone; without torch."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from octavo.core.errors import ConfigurationError
from octavo.loading.footprint import loaded_weight_bytes
from octavo.loading.gguf_header import GGUFHeader
from octavo.loading.header import Header, check_tensors
from octavo.loading.safetensors_header import SafetensorsHeader
from octavo.models.config import ModelConfig
from octavo.models.groups import LayerGroup, kv_bytes_per_token, layer_groups


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """What ``octavo inspect`` shows.

    ``kinds``: tensors by number format. ``weight_bytes``: as stored; ``loaded_bytes``: in memory.
    ``kv_bytes_per_token``: all layers.
    """

    config: ModelConfig
    num_parameters: int
    weight_bytes: int
    loaded_bytes: int
    kinds: Mapping[str, int]
    groups: tuple[LayerGroup, ...]
    kv_bytes_per_token: int


def model_summary(
    path: Path, kv_dtype: str = "float32", dtype: str = "auto", quantization: str | None = None
) -> ModelSummary:
    """Describe the model at ``path`` (a .gguf file, or a folder of safetensors) with keys and values in ``kv_dtype``
    (``kernels.kinds``) and weights as ``load_model`` would keep them, reading headers only.

    Raises:
        ConfigurationError: files are missing or broken, or hold something that is not supported.
    """
    header = open_header(path)
    check_tensors(header)
    return ModelSummary(
        config=header.config,
        num_parameters=sum(prod(tensor.shape) for tensor in header.tensors.values()),
        weight_bytes=sum(tensor.num_bytes for tensor in header.tensors.values()),
        loaded_bytes=loaded_weight_bytes(header, dtype, quantization),
        kinds=Counter(tensor.kind for tensor in header.tensors.values()),
        groups=layer_groups(header.config),
        kv_bytes_per_token=kv_bytes_per_token(header.config, kv_dtype),
    )


def open_header(path: Path) -> Header:
    """
    Raises:
        ConfigurationError: nothing there, or something else, or broken.
    """
    check_exists(path)
    return SafetensorsHeader(path) if path.is_dir() else GGUFHeader(path)


def check_exists(path: Path) -> None:
    """
    Raises:
        ConfigurationError: it does not.
    """
    if not path.exists():
        raise ConfigurationError(f"{path} does not exist; give a folder of safetensors or a .gguf file that does")


def with_context(config: ModelConfig, max_model_len: int | None) -> ModelConfig:
    """The model with its context shortened to ``max_model_len`` tokens, if that is given.

    Raises:
        ConfigurationError: it is longer than the model's own.
    """
    if max_model_len is None:
        return config
    if max_model_len > config.max_position:
        raise ConfigurationError(
            f"max_model_len ({max_model_len}) is above the model's context of {config.max_position}; lower it"
        )
    return replace(config, max_position=max_model_len)
