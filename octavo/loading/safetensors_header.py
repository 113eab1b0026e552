"""A model folder as the Hugging Face hub lays it out, config.json and safetensors, in one file or several; without
torch."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from octavo.core.errors import ConfigurationError
from octavo.loading.header import StoredTensor
from octavo.loading.model_config import parse_model_config, read_json

_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_GENERATION = "generation_config.json"


class SafetensorsHeader:
    """A ``Header`` in a folder. ``framework``: what its handles give tensors as, in the words of ``safe_open``.

    Raises:
        ConfigurationError: a file is missing, cut short or no safetensors file, the config is not supported, or a
            tensor has a number format that is not.
    """

    def __init__(self, path: Path, framework: str = "numpy") -> None:
        self.path = path
        raw = read_json(path / "config.json")
        self.config = parse_model_config(raw)
        self.files = _weight_files(path)
        self._handles: dict[str, Any] = {}
        self.tensors: Mapping[str, StoredTensor] = {}
        for file in self.files:
            self._open(file, framework)
        self.generation_config: Mapping[str, Any] = (
            read_json(path / _GENERATION) if (path / _GENERATION).exists() else {}
        )
        self.eos_token_ids = _eos_ids(raw, "config.json") | _eos_ids(self.generation_config, _GENERATION)

    def stored_name(self, name: str) -> str:
        return name

    def _open(self, file: Path, framework: str) -> None:
        try:
            handle: Any = safe_open(file, framework=framework)
        except FileNotFoundError as error:
            raise ConfigurationError(f"{file} does not exist; fetch the model again") from error
        except (SafetensorError, OSError) as error:
            raise ConfigurationError(
                f"{file} is not a safetensors file or is cut short ({error}); fetch it again"
            ) from error
        described = {name: _describe(name, handle.get_slice(name)) for name in handle.keys()}  # noqa: SIM118 (no dict)
        self.tensors = {**self.tensors, **described}
        self._handles |= dict.fromkeys(described, handle)


def _weight_files(path: Path) -> tuple[Path, ...]:
    if (path / _SINGLE).exists():
        return (path / _SINGLE,)
    if (path / _INDEX).exists():
        names = read_json(path / _INDEX).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(x, str) and Path(x).name == x for x in names.values()):
            raise ConfigurationError(f"{path / _INDEX}: weight_map must map tensor names to file names of the folder")
        return tuple(path / name for name in sorted(set(names.values())))
    raise ConfigurationError(
        f"{path} holds neither {_SINGLE} nor {_INDEX}; give a folder with safetensors weights or a .gguf file"
    )


def _describe(name: str, part: Any) -> StoredTensor:
    shape, kind = tuple(part.get_shape()), str(part.get_dtype())
    if kind not in _ITEM_BYTES:
        raise ConfigurationError(
            f"tensor {name} is stored as {kind}, which is not supported; supported: {', '.join(_ITEM_BYTES)}"
        )
    return StoredTensor(shape=shape, kind=kind, num_bytes=math.prod(shape) * _ITEM_BYTES[kind])


def _eos_ids(config: Mapping[str, Any], source: str) -> frozenset[int]:
    value = config.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token_id, int) for token_id in ids):
        raise ConfigurationError(f"{source}: eos_token_id must be a token id or a list of them, got {value!r:.60}")
    return frozenset(ids)
