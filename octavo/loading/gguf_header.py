"""The header of a GGUF file as a model's: its config, and its tensors under canonical names; without torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
from gguf import ReaderTensor

from octavo.core.errors import ConfigurationError
from octavo.loading.gguf_config import ROPE_FREQS, gguf_architecture, gguf_model_config
from octavo.loading.gguf_kinds import check_kind, unpacked
from octavo.loading.gguf_reader import GGUFFile
from octavo.loading.header import StoredTensor
from octavo.models.names import HEAD, weight_shapes

_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


class GGUFHeader:
    """A ``Header`` in one GGUF file.

    Raises:
        ConfigurationError: the file is broken, its architecture or a setting is not supported, or a tensor has a
            number format that is not.
    """

    def __init__(self, path: Path) -> None:
        file = GGUFFile(path)
        self.path = path
        self.files: tuple[Path, ...] = (path,)
        self._file_tensors = file.tensors
        self._architecture = gguf_architecture(file.metadata)
        embedding = _required(file, "token_embd.weight")
        freqs = file.tensors.get(ROPE_FREQS)
        self.config = gguf_model_config(
            file.metadata,
            vocab_size=int(embedding.shape[-1]),
            tensor_names=set(file.tensors),
            rope_freqs=None if freqs is None else unpacked(freqs).tolist(),
        )
        names = [*weight_shapes(self.config), HEAD]
        self._stored_names = _stored_names(self._architecture, names, self.config.num_layers)
        canonical = {stored: name for name, stored in self._stored_names.items()}
        self.tensors: Mapping[str, StoredTensor] = {
            canonical.get(name, name): _describe(tensor) for name, tensor in file.tensors.items() if name != ROPE_FREQS
        }
        ids = [file.metadata.get(f"tokenizer.ggml.{key}") for key in _EOS_KEYS]
        self.eos_token_ids = frozenset(token_id for token_id in ids if isinstance(token_id, int))
        self.generation_config: Mapping[str, Any] = {}

    def stored_name(self, name: str) -> str:
        return self._stored_names.get(name, name)


def _stored_names(architecture: str, names: list[str], num_layers: int) -> dict[str, str]:
    """Canonical name -> name in the file, for every weight of the model."""
    kind = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    table = gguf.get_tensor_name_map(kind, num_layers)
    stored = {name: table.get_name(name, try_suffixes=(".weight", ".bias")) for name in names}
    return {name: found for name, found in stored.items() if found is not None}


def _describe(tensor: ReaderTensor) -> StoredTensor:
    check_kind(tensor)
    return StoredTensor(
        shape=tuple(int(size) for size in reversed(tensor.shape)),
        kind=tensor.tensor_type.name,
        num_bytes=int(tensor.n_bytes),
    )


def _required(file: GGUFFile, name: str) -> ReaderTensor:
    if name not in file.tensors:
        raise ConfigurationError(f"{file.path}: tensor {name} is missing; the file is incomplete")
    return file.tensors[name]
