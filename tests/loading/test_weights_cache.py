"""Packed weights in a file: made once, mapped later, never taken for those of other files, settings or versions."""

import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from octavo.kernels.cpu import CpuOps
from octavo.kernels.reference import ReferenceOps
from octavo.loading import weights_cache, weights_file
from octavo.loading.weights import LoadedModel, load_model
from tests.support.forward import prompt_logits
from tests.support.gguf_files import to_gguf
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.parity import random_ids

PROMPT = random_ids(20, RAND_VOCAB)


class NoPacking(CpuOps):
    """Fails where a linear is made, not mapped."""

    def make_linear(self, *_: Any) -> Any:
        raise AssertionError("a linear was packed")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of packed weights; models of any size are kept."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(weights_cache, "LEAST_BYTES", 0)
    return tmp_path / "cache" / "weights"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return rand_model(tmp_path / "model", "qwen2")


def load(path: Path, ops: CpuOps | None = None, **settings: Any) -> LoadedModel:
    return load_model(path, ops or CpuOps(), weights_cache=True, **settings)


def logits(loaded: LoadedModel) -> torch.Tensor:
    return prompt_logits(loaded.model, PROMPT)


def the_file(cache: Path) -> Path:
    (found,) = cache.iterdir()
    return found


def as_it_is(folder: Path) -> Path:
    return folder


def as_q8_0(folder: Path) -> Path:
    return to_gguf(folder, folder / "model.gguf", "Q8_0")


@pytest.mark.parametrize(
    ("stored", "settings"),
    [
        (as_it_is, {}),
        (as_it_is, {"quantization": "int8"}),
        (as_it_is, {"quantization": "int4"}),
        (as_q8_0, {}),
        (as_q8_0, {"dtype": "float32"}),
    ],
)
def test_a_later_start_maps_what_the_first_one_packed(
    cache: Path, folder: Path, stored: Callable[[Path], Path], settings: dict[str, Any]
) -> None:
    path = stored(folder)
    without = logits(load_model(path, CpuOps(), **settings))
    assert not cache.exists()
    first = logits(load(path, **settings))
    mapped = logits(load(path, NoPacking(), **settings))
    assert torch.equal(first, without)
    assert torch.equal(mapped, without)


def test_settings_have_files_of_their_own(cache: Path, folder: Path) -> None:
    for settings in ({}, {"dtype": "float32"}, {"quantization": "int8"}, {"quantization": "int4"}):
        load(folder, **settings)
        load(folder, NoPacking(), **settings)
    assert len(list(cache.iterdir())) == 4


def test_a_model_that_has_changed_is_packed_again_in_the_same_place(cache: Path, folder: Path) -> None:
    before = logits(load(folder))
    rand_model(folder, "qwen2", seed=1)
    with pytest.raises(AssertionError, match="packed"):
        load(folder, NoPacking())
    after = logits(load(folder))
    assert not torch.equal(before, after)
    assert torch.equal(logits(load(folder, NoPacking())), after)
    assert the_file(cache)


def test_a_file_that_was_touched_is_not_trusted(cache: Path, folder: Path) -> None:
    load(folder)
    os.utime(folder / "model.safetensors", ns=(0, 0))
    with pytest.raises(AssertionError, match="packed"):
        load(folder, NoPacking())


def change(file: Path, offset: int, content: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(content)


def cut(file: Path, size: int) -> None:
    with file.open("r+b") as opened:
        opened.truncate(size)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda file: change(file, 16, b"\x63"), "version 99"),
        (lambda file: change(file, 0, b"X"), "no file of packed weights"),
        (lambda file: change(file, 60, b"XX"), "damaged"),
        (lambda file: cut(file, file.stat().st_size - 1), "cut short"),
        (lambda file: cut(file, 200), "damaged"),
        (lambda file: cut(file, 10), "cut short"),
        (lambda file: cut(file, 0), "cannot be read"),
    ],
)
def test_what_another_version_or_an_accident_left_is_refused_by_name_and_replaced(
    cache: Path, folder: Path, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None], reason: str
) -> None:
    expected = logits(load(folder))
    harm(the_file(cache))
    with caplog.at_level(logging.INFO):
        assert torch.equal(logits(load(folder)), expected)
    assert reason in caplog.text
    assert torch.equal(logits(load(folder, NoPacking())), expected)


def test_starts_at_the_same_time_leave_one_whole_file(cache: Path, folder: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: load(folder), range(4)))
    assert the_file(cache)
    expected = logits(load(folder, NoPacking()))
    assert all(torch.equal(logits(one), expected) for one in loaded)


def test_a_mapped_file_may_be_replaced_or_removed(cache: Path, folder: Path) -> None:
    load(folder)
    mapped = load(folder, NoPacking())
    expected = logits(mapped)
    shutil.rmtree(cache)
    assert torch.equal(logits(mapped), expected)


def test_a_disk_without_room_or_a_folder_without_leave_keeps_nothing(
    cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(weights_file.shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
        load(folder)
    assert "MiB free" in caplog.text
    assert not list(cache.iterdir())
    shutil.rmtree(cache)
    cache.write_text("a file where the folder should be")
    load(folder)
    assert "are not kept in" in caplog.text


def test_parts_of_starts_that_were_killed_are_removed(cache: Path, folder: Path) -> None:
    load(folder)
    file = the_file(cache)
    old, young = file.with_name(f"{file.name}.1.part"), file.with_name(f"{file.name}.2.part")
    for part in (old, young):
        part.write_bytes(b"half")
    os.utime(old, (0, 0))
    file.unlink()
    load(folder)
    assert not old.exists()
    assert young.exists()


def test_small_models_and_the_reference_back_end_have_no_file(
    cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_model(folder, ReferenceOps(), weights_cache=True)
    monkeypatch.setattr(weights_cache, "LEAST_BYTES", 1 << 30)
    load(folder)
    assert not cache.exists()
