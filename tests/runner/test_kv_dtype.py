"""The KV cache in 16 and in 8 bits in a whole engine: the bits of an answer, and the bytes that are reckoned with."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.build import build_engine
from octavo.engine_args import EngineArgs
from octavo.runner.model_runner import ModelRunner
from tests.support.driving import Driver, Job, all_bits, at_steps, greedy_params, run_apart
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.parity import random_ids

SETTINGS: dict[str, Any] = {
    "block_size": 4,
    "max_num_seqs": 4,
    "max_model_len": 64,
    "swap_space": 0,
}


@pytest.fixture(scope="module")
def rand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand_model(tmp_path_factory.mktemp("rand"))


@pytest.mark.parametrize("kv_cache_dtype", ["float16", "int8"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_batch_chunks_cache_and_preemption_change_no_bits(rand: Path, backend: str, kv_cache_dtype: str) -> None:
    settings = SETTINGS | {"backend": backend, "kv_cache_dtype": kv_cache_dtype}
    start = random_ids(9, RAND_VOCAB, seed=9)
    prompts = [start + random_ids(length, RAND_VOCAB, seed=length) for length in (1, 2, 4, 5)]
    jobs = [Job(prompt, greedy_params(30, logprobs=2)) for prompt in prompts]
    alone = all_bits(run_apart(Driver(rand, num_blocks=64, enable_prefix_caching=False, **settings), jobs))
    small = Driver(rand, num_blocks=20, max_num_batched_tokens=7, **settings)
    assert all_bits(small.run(at_steps(jobs, [0, 1, 5, 6]))) == alone
    assert small.stats.num_preemptions > 0
    assert all_bits(small.run(jobs)) == alone
    assert small.stats.prefix_hits > 0


def runner_and_fingerprint(rand: Path, kv_cache_dtype: str, **settings: Any) -> tuple[ModelRunner, bytes]:
    engine = build_engine(EngineArgs(model=str(rand), kv_cache_dtype=kv_cache_dtype, kv_sanitizer=False, **settings))
    assert isinstance(engine._runner, ModelRunner)
    return engine._runner, engine._scheduler.kv.config.fingerprint


def test_a_cache_in_fewer_bits_is_another_one_and_auto_is_one_of_16(rand: Path) -> None:
    """What one engine caches is never taken for what another one would compute (hashes begin with the fingerprint)."""
    held, fingerprints = {}, {}
    for name in ("auto", "float32", "float16", "int8"):
        runner, fingerprints[name] = runner_and_fingerprint(rand, name, num_blocks=8)
        held[name] = {tensor.dtype for layer in runner._kv.slots for tensor in layer.tensors}
    wide, half, byte = {torch.float32}, {torch.float16}, {torch.int8, torch.float32}
    assert held == {"auto": half, "float32": wide, "float16": half, "int8": byte}
    assert fingerprints["auto"] == fingerprints["float16"]
    assert len(set(fingerprints.values())) == 3


@pytest.mark.parametrize(("kv_cache_dtype", "logged"), [("auto", "float16"), ("fp32", "float32"), ("int8", "int8")])
def test_the_pool_is_as_large_as_it_was_asked_to_be(
    rand: Path, kv_cache_dtype: str, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    budget = 2**20
    with caplog.at_level(logging.INFO):
        runner, _ = runner_and_fingerprint(rand, kv_cache_dtype, kv_cache_memory_bytes=budget, max_num_seqs=10_000)
    taken = sum(tensor.nbytes for layer in runner._kv.slots for tensor in layer.tensors)
    a_block = taken // len(runner._kv.slots[0].keys)
    assert budget - a_block < taken <= budget
    assert f"tokens, {logged}" in caplog.text
