"""Fixtures: one back end at a time, the process's native settings put back afterwards."""

from collections.abc import Iterator

import pytest
import torch

from octavo.kernels import native
from octavo.kernels.interface import Ops
from tests.kernels.cases import BACKENDS, KV_DTYPES, make_ops

NATIVE_BACKENDS = [name for name in BACKENDS if name != "reference"]


@pytest.fixture(params=BACKENDS)
def ops(request: pytest.FixtureRequest) -> Iterator[Ops]:
    yield make_ops(request.param)
    if request.param in NATIVE_BACKENDS:
        native.load()


@pytest.fixture(params=NATIVE_BACKENDS)
def cpu_ops(request: pytest.FixtureRequest) -> Iterator[Ops]:
    yield make_ops(request.param)
    native.load()


@pytest.fixture(params=KV_DTYPES)
def kv_dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """What keys and values are held in."""
    return KV_DTYPES[request.param]
