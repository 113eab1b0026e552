"""What a model would take in memory, from its config alone or from headers; no weights are read or needed."""

from math import prod
from pathlib import Path
from typing import NamedTuple

from octavo.core.errors import ConfigurationError
from octavo.loading.model_config import parse_model_config, read_json
from octavo.loading.resolve import resolve_model
from octavo.loading.summary import model_summary
from octavo.models.config import ModelConfig
from octavo.models.names import weight_shapes

PLAIN_BITS = {"float32": 32.0, "float16": 16.0, "bfloat16": 16.0}


class PlannedModel(NamedTuple):
    """``weight_bytes``: in memory. ``source``: what that was learned from."""

    config: ModelConfig
    weight_bytes: int
    source: str


def planned_model(name: str, weight_bits: float | None = None) -> PlannedModel:
    """``name``: as for ``octavo serve``, or a config.json, or a folder with nothing but one. ``weight_bits``: of a
    weight in memory; None: as Octavo would load what is there, or as the config says they are.

    Raises:
        ConfigurationError: there is no such model, or it is not supported.
    """
    path = Path(name).expanduser()
    config_file = path / "config.json" if path.is_dir() else path
    if config_file.suffix == ".json" and (path.is_file() or not any(path.glob("*.safetensors"))):
        raw = read_json(config_file)
        config = parse_model_config(raw)
        kind = str(raw.get("dtype") or raw.get("torch_dtype") or "float16")
        bits = weight_bits or PLAIN_BITS.get(kind)
        if bits is None:
            raise ConfigurationError(f"{config_file} has weights of {kind:.40}; say --weight-bits")
        return PlannedModel(config, _weight_bytes(config, bits), f"{bits:g} bits a weight")
    resolved = resolve_model(name)
    summary = model_summary(resolved)
    if weight_bits is not None:
        return PlannedModel(
            summary.config, _weight_bytes(summary.config, weight_bits), f"{weight_bits:g} bits a weight"
        )
    return PlannedModel(summary.config, summary.loaded_bytes, "as Octavo loads them")


def _weight_bytes(config: ModelConfig, bits: float) -> int:
    return round(sum(map(prod, weight_shapes(config).values())) * bits / 8)
