"""What the headers of a model's files say, whatever their format; without torch."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from octavo.core.errors import ConfigurationError
from octavo.models.config import ModelConfig
from octavo.models.names import HEAD, weight_shapes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What a file's header says of one tensor. ``kind``: its number format, as the file names it ("BF16", "Q4_K")."""

    shape: tuple[int, ...]
    kind: str
    num_bytes: int


class Header(Protocol):
    """A model on disk of which the headers have been read and checked, and no tensor.

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


def check_tensors(header: Header) -> frozenset[str]:
    """The names of the tensors that ``header.config`` needs: all are there, in their shapes. Tensors that the model
    does not use give one warning.

    Raises:
        ConfigurationError: one is missing or has another shape.
    """
    expected = weight_shapes(header.config)
    for name, shape in expected.items():
        stored = header.tensors.get(name)
        if stored is None:
            raise ConfigurationError(
                f"{header.path}: tensor {header.stored_name(name)} is missing; the file is incomplete or its config "
                "belongs to another model"
            )
        if stored.shape != shape:
            raise ConfigurationError(
                f"{header.path}: tensor {header.stored_name(name)} has shape {list(stored.shape)}, but the config "
                f"needs {list(shape)}; the file or its config belongs to another model"
            )
    _warn_of_extra(header, expected)
    return frozenset(expected)


def _warn_of_extra(header: Header, used: Iterable[str]) -> None:
    known = {*used, HEAD} if header.config.tie_embeddings else set(used)
    # Llama checkpoints of 2023 carry the rotary frequencies, which follow from the config.
    extra = [x for x in header.tensors if x not in known and not x.endswith("rotary_emb.inv_freq")]
    if extra:
        shown = ", ".join(sorted(extra)[:5]) + (", ..." if len(extra) > 5 else "")
        logger.warning("%s: %d tensors are not used by the model: %s", header.path, len(extra), shown)
