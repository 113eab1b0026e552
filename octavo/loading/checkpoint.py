"""A model on disk, whatever its format: its description, and its tensors under canonical names, read when asked for."""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from octavo.core.errors import ConfigurationError
from octavo.kernels.quantized import QuantizedWeight
from octavo.loading.quantization import Quantization, quantize
from octavo.models.config import ModelConfig
from octavo.models.registry import model_class
from octavo.models.weights import EMBEDDING, HEAD, ModelWeights

logger = logging.getLogger(__name__)

_SAMPLE_BYTES = 1 << 16
_SAMPLES = 64


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What a file's header says of one tensor. ``kind``: its number format, as the file names it ("BF16", "Q4_K")."""

    shape: tuple[int, ...]
    kind: str
    num_bytes: int


class Checkpoint(Protocol):
    """An opened model: headers read and checked, tensors still on disk.

    ``tensors`` is keyed by canonical (Hugging Face) names; names that no model knows stay as the file has them.
    ``eos_token_ids``: those of the model's files, without the tokenizer's own (spec D7).
    ``generation_config``: the model's recommended sampling settings, empty if it has none.
    """

    path: Path
    files: tuple[Path, ...]
    config: ModelConfig
    tensors: Mapping[str, StoredTensor]
    eos_token_ids: frozenset[int]
    generation_config: Mapping[str, Any]

    def stored_name(self, name: str) -> str:
        """The name that the file has for a canonical name."""
        ...

    def read(self, name: str) -> Tensor:
        """The tensor in fp32."""
        ...

    def read_matrix(self, name: str) -> Tensor | QuantizedWeight:
        """The matrix as it is stored: quantised, or in fp32."""
        ...


class Weights(ModelWeights):
    """The weights that ``checkpoint.config`` needs, each read when asked for and not kept.

    ``unpack``: matrices that are stored quantised become fp32. ``quantization``: others are quantised so.

    Raises:
        ConfigurationError: on creation, if one is missing or has another shape. Tensors that the model does not use
            give one warning.
    """

    def __init__(self, checkpoint: Checkpoint, unpack: bool = False, quantization: Quantization | None = None) -> None:
        self._checkpoint = checkpoint
        self._unpack, self._quantization = unpack, quantization
        self._names = _check_shapes(checkpoint)
        _warn_of_extra(checkpoint, self._names)

    def __getitem__(self, name: str) -> Tensor:
        return self._checkpoint.read(name)

    def matrix(self, name: str) -> Tensor | QuantizedWeight:
        if self._unpack:
            return self._checkpoint.read(name)
        weight = self._checkpoint.read_matrix(name)
        if self._quantization is None or isinstance(weight, QuantizedWeight):
            return weight
        # Embedding and head stay in 8 bits, as in the files that others make: they cost the most accuracy.
        return quantize(weight, "int8" if name in (EMBEDDING, HEAD) else self._quantization)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def settled_config(checkpoint: Checkpoint) -> ModelConfig:
    """The config, with a stored head that differs from the embedding used although the config ties the two.

    ``transformers`` does the same (``tie_weights``): what is in the file wins over the flag.
    """
    config = checkpoint.config
    if not config.tie_embeddings or not {HEAD, EMBEDDING} <= checkpoint.tensors.keys():
        return config
    if torch.equal(checkpoint.read(HEAD), checkpoint.read(EMBEDDING)):
        return config
    logger.warning("%s ties embedding and head, but stores a different %s; using the stored one", checkpoint.path, HEAD)
    return replace(config, tie_embeddings=False)


def fingerprint(checkpoint: Checkpoint) -> bytes:
    """16 bytes that differ for other weights: of each file its size and evenly spaced samples, headers included.

    Samples, because reading all of a large model twice would double the time to load it.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in checkpoint.files:
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            for index in range(_SAMPLES):
                file.seek(index * max(size - _SAMPLE_BYTES, 0) // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest()


def _check_shapes(checkpoint: Checkpoint) -> frozenset[str]:
    expected = model_class(checkpoint.config).weight_shapes(checkpoint.config)
    for name, shape in expected.items():
        stored = checkpoint.tensors.get(name)
        if stored is None:
            raise ConfigurationError(
                f"{checkpoint.path}: tensor {checkpoint.stored_name(name)} is missing; the file is incomplete or its "
                "config belongs to another model"
            )
        if stored.shape != shape:
            raise ConfigurationError(
                f"{checkpoint.path}: tensor {checkpoint.stored_name(name)} has shape {list(stored.shape)}, but the "
                f"config needs {list(shape)}; the file or its config belongs to another model"
            )
    return frozenset(expected)


def _warn_of_extra(checkpoint: Checkpoint, used: frozenset[str]) -> None:
    ignored = {HEAD} if checkpoint.config.tie_embeddings else set()
    # Llama checkpoints of 2023 carry the rotary frequencies, which follow from the config.
    extra = [x for x in checkpoint.tensors if x not in used | ignored and not x.endswith("rotary_emb.inv_freq")]
    if extra:
        shown = ", ".join(sorted(extra)[:5]) + (", ..." if len(extra) > 5 else "")
        logger.warning("%s: %d tensors are not used by the model: %s", checkpoint.path, len(extra), shown)
