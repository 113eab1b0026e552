"""Weights and tokenizer of a real model are loaded once for all engines of this folder; they hold no state of a run
(B50)."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import octavo.build
from octavo.kernels.interface import Ops
from octavo.loading.weights import LoadedModel, load_model


class _Loader:
    """``load_model`` that keeps the model it loaded last."""

    def __init__(self) -> None:
        self._key: object = None
        self._loaded: LoadedModel | None = None

    def __call__(self, path: Path, ops: Ops, *settings: Any) -> LoadedModel:
        key = (path, ops.name, *settings)
        if self._loaded is None or key != self._key:
            self._loaded = None  # before the next one takes memory
            self._key, self._loaded = key, load_model(path, ops, *settings)
        return self._loaded


@pytest.fixture(scope="package", autouse=True)
def loaded_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(octavo.build, "load_model", _Loader())
        patch.setattr(octavo.build, "load_tokenizer", cache(octavo.build.load_tokenizer))
        yield
