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


def test_a_pool_below_the_length_that_was_asked_for(rand: Path) -> None:
    with pytest.raises(ConfigurationError, match="9 blocks holds 144 tokens of one sequence, but max_model_len is 200"):
        build_engine(EngineArgs(model=str(rand), num_blocks=9, max_model_len=200))


def test_windows_leave_room_for_longer_sequences(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each layer of this model sees 24 tokens: two blocks of 16, and two for the tokens of a step."""
    model = str(rand_model(tmp_path, "mistral"))
    with caplog.at_level(logging.INFO):
        engine = build_engine(EngineArgs(model=model, num_blocks=10, max_num_batched_tokens=24, max_num_seqs=4))
    assert engine.limits.max_model_len == 4096
    assert "KV cache size: 10,240 tokens" in caplog.text
    assert "Maximum concurrency for 4,096 tokens per request: 2.50x" in caplog.text
    with pytest.raises(ConfigurationError, match="3 blocks holds 48 tokens of one sequence, but max_model_len is 64"):
        build_engine(EngineArgs(model=model, num_blocks=3, max_num_batched_tokens=24, max_num_seqs=4, max_model_len=64))
