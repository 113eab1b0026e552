"""From a path to a model that runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.kernels.interface import Ops
from octavo.loading.checkpoint import Checkpoint, Weights, fingerprint, settled_config
from octavo.loading.footprint import loaded_weight_bytes
from octavo.loading.gguf_weights import GGUFCheckpoint
from octavo.loading.quantization import Quantization
from octavo.loading.safetensors_weights import SafetensorsCheckpoint
from octavo.loading.summary import check_exists, with_context
from octavo.loading.weights_cache import open_linear_cache
from octavo.models.interface import Model
from octavo.models.registry import model_class


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run.

    ``eos_token_ids``: those that the model's files name, without the tokenizer's own (spec D7).
    ``generation_config``: the model's recommended sampling settings, empty if it has none.
    ``fingerprint``: 16 bytes that stand for the weights, for hashes of cached keys and values.
    ``weight_bytes``: what they take in memory (``loaded_weight_bytes``).
    """

    model: Model
    eos_token_ids: frozenset[int]
    generation_config: Mapping[str, Any]
    fingerprint: bytes
    weight_bytes: int


def load_model(
    path: Path,
    ops: Ops,
    max_model_len: int | None = None,
    dtype: str = "auto",
    quantization: Quantization | None = None,
    weights_cache: bool = False,
) -> LoadedModel:
    """Load the model at ``path`` (a .gguf file, or a folder of safetensors) for the back end of ``ops``.

    ``max_model_len``, if given, shortens the context (``model.config.max_position``), and with it the angle tables.
    ``dtype``: "auto" keeps matrices as they are stored, quantised or in 16 bits; anything else unpacks them to fp32.
    ``quantization``: plain matrices are quantised so. ``weights_cache``: map the packed weights from a file that an
    earlier start left in the cache folder, or leave one. Peak memory is near one copy of the weights as they are kept
    and the largest tensor twice; with a file, what has been touched of it, which the system may take back.

    Raises:
        ConfigurationError: files are missing or broken, or hold something that is not supported.
    """
    checkpoint = open_checkpoint(path)
    checkpoint.config = settled_config(checkpoint)
    config = with_context(checkpoint.config, max_model_len)
    contents, num_bytes = fingerprint(checkpoint), loaded_weight_bytes(checkpoint, dtype, quantization)
    settings = f"{dtype} {quantization}"
    cache = open_linear_cache(checkpoint, ops, settings, contents, num_bytes) if weights_cache else None
    weights = Weights(checkpoint, unpack=dtype != "auto", quantization=quantization, cache=cache)
    model = model_class(config)(config, weights, ops)
    if cache is not None:
        cache.save()
    return LoadedModel(
        model=model,
        eos_token_ids=checkpoint.eos_token_ids,
        generation_config=checkpoint.generation_config,
        fingerprint=contents,
        weight_bytes=num_bytes,
    )


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a .gguf file or a folder of safetensors; headers are read, tensors are not.

    Raises:
        ConfigurationError: nothing there, or something else, or broken.
    """
    check_exists(path)
    return SafetensorsCheckpoint(path) if path.is_dir() else GGUFCheckpoint(path)
