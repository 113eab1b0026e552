"""Engines that give nothing back that slides out of a window: what those that do are held against."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

import octavo.build
from octavo.core.kv_types import CacheConfig


@contextmanager
def keeping_all() -> Iterator[None]:
    """Engines that are built here know no windows but those of their kernels."""
    sizes = octavo.build.cache_sizes

    def without_windows(*args: Any) -> CacheConfig:
        return replace(sizes(*args), windows=())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(octavo.build, "cache_sizes", without_windows)
        yield
