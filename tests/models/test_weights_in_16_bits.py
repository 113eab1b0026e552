"""Whole models whose weights are stored in 16 bits: kept so, half the memory, and the bits of fp32."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.kernels.cpu import CpuLinear
from octavo.kernels.registry import select_ops
from octavo.loading.summary import model_summary
from octavo.loading.weights import load_model
from octavo.models.interface import Model
from tests.support.forward import prompt_logits
from tests.support.gguf_files import to_gguf
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.parity import random_ids

PROMPT = random_ids(60, RAND_VOCAB)
Kind = Literal["F16", "BF16"]


def in_16_bits(folder: Path, kind: Kind) -> Path:
    """The safetensors of a model, rounded."""
    dtype = {"F16": torch.float16, "BF16": torch.bfloat16}[kind]
    weights = load_file(folder / "model.safetensors")
    save_file({name: weight.to(dtype) for name, weight in weights.items()}, folder / "model.safetensors")
    return folder


@pytest.fixture(params=["llama", "qwen2", "gemma3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return rand_model(tmp_path, request.param, tie_word_embeddings=request.param != "qwen2")


@pytest.mark.parametrize("kind", ["F16", "BF16"])
@pytest.mark.parametrize("source", ["safetensors", "gguf"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_logits_have_the_bits_of_the_weights_in_fp32(folder: Path, kind: Kind, source: str, backend: str) -> None:
    path = in_16_bits(folder, kind) if source == "safetensors" else to_gguf(folder, folder / "model.gguf", kind)
    ops = select_ops(backend)
    kept, unpacked = (prompt_logits(load_model(path, ops, dtype=dtype).model, PROMPT) for dtype in ("auto", "float32"))
    assert torch.equal(kept, unpacked)


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_memory_of_the_matrices_halves_and_is_told(folder: Path, kind: Kind) -> None:
    path, ops = in_16_bits(folder, kind), select_ops("cpu")
    kept, unpacked = (load_model(path, ops, dtype=dtype) for dtype in ("auto", "float32"))
    assert packed_bytes(kept.model) * 2 == packed_bytes(unpacked.model)
    for loaded, dtype in ((kept, "auto"), (unpacked, "float32")):
        assert model_summary(path, dtype=dtype).loaded_bytes == loaded.weight_bytes
        # Padding to 16 outputs on the one hand, norms and biases on the other.
        assert loaded.weight_bytes == pytest.approx(packed_bytes(loaded.model), rel=0.03)


def packed_bytes(model: Model) -> int:
    """Of all linears that the model holds, each counted once."""
    return sum(linear.packed.nbytes for linear in {id(found): found for found in _linears(model)}.values())


def _linears(root: object) -> Iterator[CpuLinear]:
    seen, left = set[int](), [root]
    while left:
        held = left.pop()
        if id(held) in seen:
            continue
        seen.add(id(held))
        if isinstance(held, CpuLinear):
            yield held
        elif type(held).__module__.startswith("octavo.models") or isinstance(held, (dict, list, tuple)):
            left += gc.get_referents(held)
