"""Small models whose layers have windows: blocks behind these are given back, and nothing of an answer changes, not a
bit; and what they say is what ``transformers`` says."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from octavo.core.beam_search import BeamSearchParams
from octavo.core.sampling_params import SamplingParams
from octavo.engine.messages import OutputDelta
from tests.support.driving import Driver, Job, all_bits, at_steps, greedy_params, run_apart
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.parity import random_ids, reference_model
from tests.support.windows import keeping_all

ARCHS = ("mistral", "gemma3", "qwen2")
WINDOWS: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2}
}
"""Mistral: all layers see 24 tokens; Gemma 3: five of six do; Qwen2: the upper two see 9."""
BASE: dict[str, Any] = {"block_size": 4, "max_model_len": 400, "max_num_seqs": 8, "max_num_batched_tokens": 24}
LARGE = BASE | {"num_blocks": 600, "swap_space": 0}
KV_DTYPES = ("float32", "float16", "int8")


@pytest.fixture(scope="module", params=ARCHS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    arch: str = request.param
    return rand_model(tmp_path_factory.mktemp(arch), arch, **WINDOWS.get(arch, {}))


JOBS = [
    Job(random_ids(length, RAND_VOCAB)[length % 3 :], SamplingParams(max_tokens=12 + 9 * number, logprobs=2, **kind))
    for number, (length, kind) in enumerate(
        [
            (5, {"temperature": 0.0, "ignore_eos": True}),
            (60, {"temperature": 0.8, "seed": 5, "n": 3, "ignore_eos": True}),
            (61, {"temperature": 0.0, "repetition_penalty": 1.3, "ignore_eos": True}),
            (130, {"temperature": 1.0, "seed": 6, "ignore_eos": True}),
            (131, {"temperature": 0.0, "ignore_eos": True}),
        ]
    )
]


@pytest.fixture(scope="module")
def kept(model: Path) -> Callable[[str], list[Any]]:
    """The answers where nothing is given back, one at a time, nothing cached, for a type of KV cache."""
    known: dict[str, list[Any]] = {}

    def answers(kv_cache_dtype: str) -> list[Any]:
        if kv_cache_dtype not in known:
            with keeping_all():
                driver = Driver(
                    model, checks=False, kv_cache_dtype=kv_cache_dtype, enable_prefix_caching=False, **LARGE
                )
            known[kv_cache_dtype] = all_bits(run_apart(driver, JOBS))
            assert driver.engine._scheduler.kv.config.windows == ()
        return known[kv_cache_dtype]

    return answers


class _Adversary(Driver):
    """Shuffles the free blocks before every step and now and then takes the blocks of a running request."""

    def __init__(self, model: Path, random: Random, **settings: Any) -> None:
        super().__init__(model, **settings)
        self._random = random

    def step(self) -> list[OutputDelta]:
        scheduler = self.engine._scheduler
        self._random.shuffle(scheduler.kv.pool._free)
        if len(scheduler.running) and self._random.random() < 0.04:
            scheduler.population.preempt(self._random.choice(list(scheduler.running)))
        return super().step()


def _smallest_pool(driver: Driver, num_tokens: int) -> int:
    return driver.engine._scheduler.kv.num_blocks_for(num_tokens)


@pytest.mark.parametrize("kv_cache_dtype", KV_DTYPES)
def test_alone_and_with_hits(model: Path, kept: Callable[[str], list[Any]], kv_cache_dtype: str) -> None:
    driver = Driver(model, checks=False, kv_cache_dtype=kv_cache_dtype, **LARGE | {"num_blocks": 1500})
    for _ in range(2):
        assert all_bits(run_apart(driver, JOBS)) == kept(kv_cache_dtype)
    assert driver.stats.prefix_hits > 3 * 128


@pytest.mark.parametrize("mode", ["swap", "recompute", "auto"])
@pytest.mark.parametrize("kv_cache_dtype", KV_DTYPES)
def test_all_at_once_in_a_pool_that_preempts(
    model: Path, kept: Callable[[str], list[Any]], kv_cache_dtype: str, mode: str
) -> None:
    settings = LARGE | {"preemption_mode": mode, "swap_space": 0.01, "kv_cache_dtype": kv_cache_dtype}
    num_blocks = _smallest_pool(Driver(model, checks=False, **settings), 180)
    driver = Driver(model, **settings | {"num_blocks": num_blocks, "max_model_len": None})
    assert all_bits(driver.run(JOBS)) == kept(kv_cache_dtype)
    assert driver.stats.num_preemptions > 0


@pytest.mark.parametrize("seed", range(6))
def test_random_schedules(model: Path, kept: Callable[[str], list[Any]], seed: int) -> None:
    random = Random(seed)
    kv_cache_dtype = random.choice(KV_DTYPES)
    swap_space = random.choice([0, 0.001, 0.01])
    is_cached = random.random() < 0.7
    settings = BASE | {
        "kv_cache_dtype": kv_cache_dtype,
        "block_size": random.choice([1, 4, 16]),
        "max_num_seqs": random.randint(3, 8),
        "max_num_batched_tokens": random.choice([8, 24, 64]),
        "enable_prefix_caching": is_cached,
        "eviction_policy": random.choice(["lru", "reuse"]),
        "preemption_mode": random.choice(["auto", "swap", "recompute"]),
        "swap_space": swap_space,
        "speculation": ["ngram", "off"][seed % 2],
        "prefix_cache_on_host": is_cached and swap_space > 0,
    }
    num_blocks = _smallest_pool(Driver(model, checks=False, **settings | {"num_blocks": 3000}), 180)
    adversary = _Adversary(
        model, random, **settings | {"num_blocks": random.randint(num_blocks, 2 * num_blocks), "max_model_len": None}
    )
    answers = adversary.run(at_steps(JOBS, [random.randrange(20) for _ in JOBS]))
    assert all_bits(answers) == kept(kv_cache_dtype)
    # With drafts there are few steps, how many depends on the clock, and the adversary may find none to preempt in.
    assert adversary.stats.num_preemptions > 0 or settings["speculation"] == "ngram"


def test_beams(model: Path) -> None:
    prompt, beams = JOBS[3].prompt, BeamSearchParams(3, 40)
    found = []
    for keeps_all in (True, False):
        with keeping_all() if keeps_all else nullcontext():
            driver = Driver(model, **LARGE | {"num_blocks": 1500})
        request_id = driver.add(prompt, SamplingParams(n=3, temperature=0.0, max_tokens=40), beam_search=beams)
        driver.finish()
        found.append([answer.token_ids for answer in driver.answers[request_id]])
    assert found[0] == found[1]
    assert len(found[0][0]) > 20


@pytest.mark.parametrize("arch", ["mistral", "gemma3"])
def test_long_answers_are_those_of_transformers(arch: str, tmp_path: Path) -> None:
    """Windows slide over several blocks, in chunks and token by token."""
    folder = rand_model(tmp_path, arch)
    prompt = random_ids(90, RAND_VOCAB)
    expected = reference_model(folder).generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt)),
        max_new_tokens=60,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    driver = Driver(folder, **LARGE)
    assert driver.ask(prompt, greedy_params(60)).token_ids == expected[0, len(prompt) :].tolist()
    pool = driver.engine._scheduler.kv.config
    assert pool.num_blocks_for(150) < pool.num_groups * -(-150 // pool.block_size)
