"""Settings that cannot work are refused in one sentence, before anything is loaded where that can be."""

import logging
from pathlib import Path

import pytest

from octavo.build import build_engine
from octavo.core.errors import ConfigurationError
from octavo.engine_args import BACKENDS, MAX_THREADS, EngineArgs
from octavo.kernels import native, registry
from tests.support.models import rand_model


@pytest.fixture(scope="module")
def rand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand_model(tmp_path_factory.mktemp("rand"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "bf16"}, "dtype 'bf16' is not supported"),
        (
            {"kv_cache_dtype": "fp8"},
            "kv_cache_dtype 'fp8' is not supported; use one of: auto, float32, fp32, float16, fp16, int8",
        ),
        ({"kv_cache_dtype": ["int8"]}, "is not supported; use one of"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"memory_utilization": 1.5}, "memory_utilization must be in"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"threads": 1025}, "threads must be at most 1024, got 1025"),
        ({"backend": "gpu"}, "There is no backend 'gpu'; choose one of: cpu, reference"),
        ({"max_num_batched_tokens": 100}, r"max_num_batched_tokens \(100\) must be at least max_num_seqs \(256\)"),
        (
            {"num_blocks": 9, "max_model_len": 200},
            "num_blocks 9 of 16 tokens hold 144 tokens at most, but",
        ),
    ],
)
def test_settings_are_checked_when_they_are_made(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        EngineArgs(**settings)  # type: ignore[arg-type]


def test_what_is_checked_early_is_what_is_there() -> None:
    """Names and numbers that settings know without the libraries which compute."""
    assert tuple(registry._BACKENDS) == BACKENDS
    assert native.MAX_THREADS == MAX_THREADS


def test_more_kv_memory_than_there_is(rand: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"kv_cache_memory_bytes is 1,024\.00 GiB, but .* GiB of memory are free"
    ):
        build_engine(EngineArgs(model=str(rand), kv_cache_memory_bytes=2**40))


def test_too_little_for_one_block(rand: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"a KV pool of 100 bytes .* cannot hold one sequence"):
        build_engine(EngineArgs(model=str(rand), kv_cache_memory_bytes=100))


def test_a_pool_below_the_context_is_said(rand: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        engine = build_engine(EngineArgs(model=str(rand), num_blocks=3))
    assert engine.limits.max_model_len == 48
    assert "requests above 48 tokens will be refused" in caplog.text
