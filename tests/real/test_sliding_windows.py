"""Gemma 3 270M, whose layers see 512 tokens but for every sixth: blocks behind the window are given back, and no bit of
an answer differs from a run that keeps all: alone, in chunks, from the cache, preempted, swapped, in 8 bits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import octavo.build
from octavo.core.step import NO_BLOCK
from octavo.engine.messages import EngineStats, OutputDelta
from tests.real.text import ALICE
from tests.support.driving import Driver, Job, all_bits, greedy_params, run_apart
from tests.support.windows import keeping_all

LENGTHS = (700, 560, 620)
NUM_SHARED = 1 + 601
"""All begin with BOS, the first and the last go on alike."""
BASE: dict[str, Any] = {"max_model_len": 736, "max_num_seqs": 4, "max_num_batched_tokens": 64}
LARGE = BASE | {"num_blocks": 900}
SMALL = BASE | {"num_blocks": 460, "swap_space": 0.1, "enable_prefix_caching": False}
"""Two sequences fit: the longest takes 46 blocks of the global layers and 37 of each of the five other groups at most.
"""

Way = tuple[dict[str, Any], Callable[[EngineStats], bool]]

WAYS: dict[str, Way] = {
    "in large chunks": (LARGE | {"max_num_batched_tokens": 512}, lambda stats: stats.prefix_hits >= NUM_SHARED),
    "swapped": (SMALL | {"preemption_mode": "swap"}, lambda stats: stats.num_swaps > 0),
    "computed again": (SMALL | {"preemption_mode": "recompute"}, lambda stats: stats.num_preemptions > 0),
    "swapped, int8": (
        SMALL | {"preemption_mode": "swap", "kv_cache_dtype": "int8"},
        lambda stats: stats.num_swaps > 0,
    ),
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def jobs(gemma3_path: Path) -> list[Job]:
    """Two prompts begin alike. The shortest slides out of its window while it answers."""
    tokenizer = octavo.build.load_tokenizer(gemma3_path, None)
    bos = [tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else []
    ids = tokenizer.encode(ALICE, False)
    prompts = [bos + ids[:699], bos + ids[100:659], bos + ids[:600] + ids[:19]]
    assert tuple(map(len, prompts)) == LENGTHS
    return [Job(prompt, greedy_params(24 + 4 * number, logprobs=2)) for number, prompt in enumerate(prompts)]


@pytest.fixture(scope="module")
def kept(gemma3_path: Path, jobs: list[Job]) -> Callable[[str], list[Any]]:
    """The answers where nothing is given back, one at a time, nothing cached, for a type of KV cache."""
    known: dict[str, list[Any]] = {}

    def answers(kv_cache_dtype: str) -> list[Any]:
        if kv_cache_dtype not in known:
            settings = LARGE | {"enable_prefix_caching": False, "kv_cache_dtype": kv_cache_dtype}
            with keeping_all():
                driver = Driver(gemma3_path, checks=False, **settings)
            known[kv_cache_dtype] = all_bits(run_apart(driver, jobs))
        return known[kv_cache_dtype]

    return answers


def test_alone_and_from_the_cache(gemma3_path: Path, jobs: list[Job], kept: Callable[[str], list[Any]]) -> None:
    driver = Driver(gemma3_path, checks=False, **LARGE)
    assert all_bits(run_apart(driver, jobs)) == kept("auto")
    assert driver.stats.prefix_hits == NUM_SHARED
    assert all_bits(run_apart(driver, jobs)) == kept("auto")
    assert driver.stats.prefix_hits == NUM_SHARED + sum(LENGTHS) - len(LENGTHS)


class _Preempting(Driver):
    """Takes the blocks of the youngest running request now and then: a pool from which sequences take less the longer
    they slide seldom has to."""

    def __init__(self, model: Path, **settings: Any) -> None:
        super().__init__(model, checks=False, **settings)
        self._num_steps = 0

    def step(self) -> list[OutputDelta]:
        self._num_steps += 1
        running = self.engine._scheduler.running
        if self._num_steps % 17 == 0 and running:
            self.engine._scheduler.population.preempt(running.last)
        return super().step()


@pytest.mark.parametrize("way", WAYS)
def test_all_at_once(way: str, gemma3_path: Path, jobs: list[Job], kept: Callable[[str], list[Any]]) -> None:
    settings, happened = WAYS[way]
    driver = _Preempting(gemma3_path, **settings)
    assert all_bits(driver.run(jobs)) == kept(settings.get("kv_cache_dtype", "auto"))
    assert happened(driver.stats)


def test_a_sequence_holds_what_its_windows_show(gemma3_path: Path, jobs: list[Job]) -> None:
    driver = Driver(gemma3_path, checks=False, **LARGE)
    driver.add(jobs[0].prompt, jobs[0].params)
    while not driver.engine._scheduler.running or not next(iter(driver.engine._scheduler.running)).num_output_tokens:
        driver.step()
    (sequence,) = driver.engine._scheduler.running
    assert sequence.tables is not None
    whole, *windowed = sequence.tables.groups
    assert NO_BLOCK not in whole
    assert all(table[:8] == [NO_BLOCK] * 8 and NO_BLOCK not in table[11:] for table in windowed)
    driver.finish()
