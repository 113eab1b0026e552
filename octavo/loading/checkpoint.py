"""A model on disk, whatever its format: its tensors under canonical names, read when asked for."""

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from octavo.kernels.interface import Linear, Ops
from octavo.kernels.quantized import QuantizedWeight
from octavo.loading.header import Header, check_tensors
from octavo.loading.load_progress import LoadProgress
from octavo.loading.quantization import Quantization, quantize
from octavo.loading.weights_cache import LinearCache
from octavo.models.config import ModelConfig
from octavo.models.names import EMBEDDING, HEAD
from octavo.models.weights import ModelWeights

logger = logging.getLogger(__name__)

_SAMPLE_BYTES = 1 << 16
_SAMPLES = 64


class Checkpoint(Header, Protocol):
    """An opened model: its header, and its tensors, still on disk."""

    def read(self, name: str) -> Tensor:
        """The tensor in fp32."""
        ...

    def read_matrix(self, name: str) -> Tensor | QuantizedWeight:
        """The matrix as it is stored: quantised, or plain in whatever type."""
        ...


class Weights(ModelWeights):
    """The weights that ``checkpoint.config`` needs, each read when asked for and not kept.

    ``unpack``: matrices become fp32, however they are stored. ``quantization``: plain ones are quantised so. ``cache``:
    where linears come from that were made before.

    Raises:
        ConfigurationError: on creation, if one is missing or has another shape.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        unpack: bool = False,
        quantization: Quantization | None = None,
        cache: LinearCache | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._cache = cache
        self._unpack, self._quantization = unpack, quantization
        self._names = check_tensors(checkpoint)
        sizes = {name: checkpoint.tensors[name].num_bytes for name in self._names if name in checkpoint.tensors}
        self._progress = LoadProgress(sizes)

    def __getitem__(self, name: str) -> Tensor:
        self._progress.note([name])
        return self._checkpoint.read(name)

    def matrix(self, name: str) -> Tensor | QuantizedWeight:
        self._progress.note([name])
        if self._unpack:
            return self._checkpoint.read(name)
        weight = self._checkpoint.read_matrix(name)
        if self._quantization is None or isinstance(weight, QuantizedWeight):
            return weight
        # Embedding and head stay in 8 bits, as in the files that others make: they cost the most accuracy.
        return quantize(weight.float(), "int8" if name in (EMBEDDING, HEAD) else self._quantization)

    def linear(self, ops: Ops, matrices: tuple[str, ...]) -> Linear:
        if self._cache is None:
            return super().linear(ops, matrices)
        make = super().linear
        self._progress.note(matrices)
        return self._cache.linear(matrices, lambda: make(ops, matrices))

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
