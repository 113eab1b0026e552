"""The reference for models: ``transformers`` in fp32, one sequence at a time, against Octavo's own forward pass."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import numpy as np
import torch
from gguf import GGUFValueType
from torch import Tensor

from octavo.kernels.registry import select_ops
from octavo.loading.gguf_reader import QuickReader
from octavo.loading.weights import load_model
from octavo.models.interface import Model
from tests.support.forward import prompt_logits


class _ReaderInParts(QuickReader):
    """With an array's strings as parts of a field, as the package has them."""

    def __init__(self, path: Path, mode: str = "r") -> None:
        super().__init__(path, mode)
        for name, field in self.fields.items():
            if field.types[0] == GGUFValueType.ARRAY and field.types[-1] == GGUFValueType.STRING:
                strings = [np.frombuffer(text.encode(), np.uint8) for text in self.contents(field)]
                self.fields[name] = field._replace(parts=strings, data=list(range(len(strings))))


@cache
def reference_model(path: Path) -> Any:
    """The ``transformers`` model of a folder or a .gguf file; kept for the whole run.

    ``transformers`` unpacks and arranges a .gguf file's tensors itself; only the header is parsed by Octavo's quick
    reader, which a test holds to the package's own (that one takes half a minute for Gemma's vocabulary), and the names
    of an architecture's tensors are listed once, not for each of 400 modules (ten seconds)."""
    from transformers import AutoModelForCausalLM

    if path.suffix == ".gguf":
        names = cache(gguf.get_tensor_name_map)
        with mock.patch.multiple(gguf, GGUFReader=_ReaderInParts, get_tensor_name_map=names):
            return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def reference_logprobs(path: Path, token_ids: Sequence[int], num_logits: int = 0) -> Tensor:
    """Logprobs fp32 [n, vocab] after each of ``token_ids``; or after the last ``num_logits`` of them."""
    with torch.no_grad():
        logits: Tensor = reference_model(path)(torch.tensor([list(token_ids)]), logits_to_keep=num_logits).logits[0]
    return logits.log_softmax(-1)


def load(path: Path) -> Model:
    """Octavo's model in fp32, for the back end that runs by default."""
    return load_model(path, select_ops(), dtype="float32").model


def logprobs(path: Path, token_ids: Sequence[int], chunk: int | None = None) -> Tensor:
    """Octavo's logprobs fp32 [n, vocab] after each of ``token_ids``, computed ``chunk`` at a time (None: at once)."""
    return prompt_logits(load(path), token_ids, chunk).log_softmax(-1)


def largest_difference(path: Path, token_ids: Sequence[int], reference: Path | None = None) -> float:
    """Largest difference of any logprob between Octavo at ``path`` and ``transformers`` at ``reference``."""
    expected = reference_logprobs(reference or path, token_ids)
    return float((logprobs(path, token_ids) - expected).abs().max())


def random_ids(count: int, vocab_size: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(0, vocab_size, (count,), generator=generator).tolist()
    return ids
