"""The files that ``octavo bench compare`` makes of a model hold what the stored one does."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from octavo.bench.compare.models import model_as
from octavo.core.errors import ConfigurationError
from octavo.loading.gguf_reader import GGUFFile
from octavo.loading.gguf_weights import dequantize
from octavo.loading.weights import open_checkpoint
from tests.support.gguf_files import to_gguf
from tests.support.models import rand_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand_model(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def stored(folder: Path) -> Path:
    return to_gguf(folder, folder.parent / "stored.gguf", "Q4_1")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("weights", ["Q8_0", "Q4_0", "F32"])
def test_requantized_from_fp32(stored: Path, weights: str) -> None:
    made = model_as(stored, weights)
    old, new, kind = GGUFFile(stored), GGUFFile(made), GGMLQuantizationType[weights]
    differing = {key for key in old.metadata if old.metadata[key] != new.metadata.get(key)}
    assert {key for key in differing if not key.startswith("GGUF.")} <= {"general.file_type"}
    assert new.metadata["general.file_type"] == {"Q8_0": 7, "Q4_0": 2, "F32": 0}[weights]
    assert old.tensors.keys() == new.tensors.keys()
    for name, tensor in old.tensors.items():
        if len(tensor.shape) == 1:
            assert np.array_equal(tensor.data, new.tensors[name].data)
        else:
            assert new.tensors[name].tensor_type == kind
            assert np.array_equal(new.tensors[name].data, quants.quantize(dequantize(tensor).numpy(), kind))
    assert model_as(stored, "stored") == stored


def test_written_once(stored: Path) -> None:
    made = model_as(stored, "Q8_0")
    written = made.stat().st_mtime_ns
    assert model_as(stored, "Q8_0") == made
    assert made.stat().st_mtime_ns == written


def test_what_is_in_8_bits_stays_as_it_is_but_in_fp32(folder: Path) -> None:
    eight = to_gguf(folder, folder.parent / "eight.gguf", "Q8_0")
    unpacked = GGUFFile(model_as(eight, "F32"))
    assert {tensor.tensor_type.name for tensor in unpacked.tensors.values()} == {"F32"}
    four = GGUFFile(model_as(eight, "Q4_0"))
    for name, tensor in GGUFFile(eight).tensors.items():
        assert np.array_equal(tensor.data, four.tensors[name].data)


def test_the_fp32_folder_is_the_same_model(stored: Path) -> None:
    made, original = open_checkpoint(model_as(stored, "float32")), open_checkpoint(stored)
    assert made.config == original.config
    for name in made.tensors:
        assert torch.equal(made.read(name), original.read(name))


def test_refusals(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"octavo bench compare needs a \.gguf file"):
        model_as(folder, "Q8_0")
    gemma = to_gguf(rand_model(tmp_path / "gemma", "gemma3"), tmp_path / "gemma.gguf", "Q8_0")
    with pytest.raises(ConfigurationError, match=r"not on this gemma3; leave transformers and vllm out of --peers"):
        model_as(gemma, "float32")
