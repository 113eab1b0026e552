"""Settings that cannot work are refused in one sentence, before anything is loaded where that can be."""

import logging
import re
from dataclasses import Field, asdict, fields
from pathlib import Path
from typing import Any, get_args

import pytest

from octavo import LLM, AsyncLLM
from octavo.build import build_engine
from octavo.core.errors import ConfigurationError
from octavo.engine_args import BACKENDS, MAX_THREADS, EngineArgs
from octavo.kernels import native, registry
from octavo.settings import read_settings
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


WRONG = {"int": [True, 1.5, "4k"], "float": [True, "0.5", [1]], "bool": ["no", 1, 0], "str": [5, True, b"a", ["a"]]}
"""Values that are not of a type, by its name."""


@pytest.mark.parametrize("field", fields(EngineArgs), ids=lambda field: field.name)
def test_a_value_of_another_type_is_refused_for_every_setting(field: Field[object]) -> None:
    kinds = [kind for kind in WRONG if re.search(rf"\b{kind}\b", str(field.type))] or ["str"]
    is_optional = type(None) in get_args(field.type)
    for value in [*WRONG[kinds[0]], *([] if is_optional else [None])]:
        with pytest.raises(ConfigurationError, match=field.name):
            EngineArgs(**{field.name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [LLM, AsyncLLM])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is 2, but this version runs a model in one process only"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size is 2"),
        ({"max_num_seq": 3}, r"unknown setting 'max_num_seq' \(did you mean max_num_seqs\?\)"),
        ({"zzz": 3}, r"unknown setting 'zzz'; octavo.EngineArgs lists the settings"),
        ({"gpu_memory_utilization": 0.5, "memory_utilization": 0.4}, "memory_utilization is given twice"),
        ({"gpu_memory_utilization": 2.0}, r"memory_utilization must be in \(0, 1\], got 2"),
        ({"enable_prefix_caching": "no"}, "enable_prefix_caching must be true or false, got 'no'"),
        ({"model": 5}, "model must be a text, got 5"),
        ({"chat_template": "missing.jinja"}, "cannot read the chat template missing.jinja"),
    ],
)
def test_settings_in_python_are_refused_in_one_sentence(kind: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        kind(**settings)


def test_other_names_and_forms_of_settings(rand: Path) -> None:
    settings = {"model": rand, "gpu_memory_utilization": 0.25, "prefix_cache_dir": rand / "cache", "swap_space": 1}
    assert read_settings(settings) == EngineArgs(
        model=str(rand), memory_utilization=0.25, prefix_cache_dir=str(rand / "cache"), swap_space=1
    )
    (rand / "template.jinja").write_text("{{ bos_token }}")
    args = read_settings({"chat_template": rand / "template.jinja", "tensor_parallel_size": 1})
    assert args.chat_template == "{{ bos_token }}"
    assert read_settings(asdict(args)) == args


def test_a_word_that_is_no_switch_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_KV_SANITIZER", "2")
    with pytest.raises(ConfigurationError, match="OCTAVO_KV_SANITIZER=2: give 1 or 0"):
        build_engine(EngineArgs(model="/nowhere"))


def test_what_is_checked_early_is_what_is_there() -> None:
    """Names and numbers that settings know without the libraries which compute."""
    assert tuple(registry._BACKENDS) == BACKENDS
    assert native.MAX_THREADS == MAX_THREADS


def test_more_kv_memory_than_there_is(rand: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"kv_cache_memory_bytes is 1,024\.00 GiB, but .* GiB of memory are free"
    ):
        build_engine(EngineArgs(model=str(rand), kv_cache_memory_bytes=2**40))


@pytest.mark.parametrize("setting", ["swap_space", "kv_cache_memory_bytes"])
def test_more_than_is_free_is_refused_before_anything_is_loaded(setting: str) -> None:
    """So also before it is found that there is no such model."""
    args = EngineArgs(model="/nowhere", **{setting: 10**6 if setting == "swap_space" else 2**50})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=rf"{setting} is [0-9,.]+ GiB, but [0-9,.]+ GiB of memory are free"):
        build_engine(args)


def test_tiers_and_the_sanitizer_are_told_at_start(
    rand: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OCTAVO_KV_SANITIZER", raising=False)
    told = ("Host pool: up to 0.00 GiB in ", "Prefix cache on disk: 0.00 GiB in ", "KV sanitizer: on")
    sizes: dict[str, Any] = {"model": str(rand), "num_blocks": 20, "max_model_len": 64, "threads": 1}
    with caplog.at_level(logging.INFO):
        build_engine(EngineArgs(**sizes, swap_space=0)).close()
        assert not [line for line in told if line in caplog.text]
        tiers: dict[str, Any] = {"prefix_cache_dir": str(tmp_path), "prefix_cache_disk_space": 0.001}
        build_engine(EngineArgs(**sizes, **tiers, swap_space=0.001, kv_sanitizer=True)).close()
        assert [line for line in told if line in caplog.text] == list(told)
        assert "blocks, for preempted sequences\n" in caplog.text
        assert f" blocks in {tmp_path}, of which 0 are filled" in caplog.text


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
