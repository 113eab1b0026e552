"""SmolLM2 in a pool so small that it preempts: swapped, computed again or whichever is quicker, with and without the
host's part of the prefix cache, answers are bit for bit those of a large pool."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import octavo.build
from octavo.engine.messages import EngineStats
from tests.real.text import ALICE
from tests.support.driving import Driver, Job, all_bits, greedy_params, run_apart

LENGTHS = (20, 28, 19, 27)
SETTINGS: dict[str, Any] = {"max_model_len": 64, "max_num_seqs": 8}
TINY = SETTINGS | {"num_blocks": 5, "swap_space": 0.01}
"""All four take 12 blocks of 16 tokens."""

Way = tuple[dict[str, Any], Callable[[EngineStats], bool]]

WAYS: dict[str, Way] = {
    "swap": ({"preemption_mode": "swap", "enable_prefix_caching": False}, lambda s: s.num_swaps == s.num_preemptions),
    "swap, cached": ({"preemption_mode": "swap"}, lambda s: s.num_swaps > 0 and s.swapped_in_blocks > 0),
    "auto": ({"preemption_mode": "auto"}, lambda s: s.num_preemptions > 0),
    "recompute": ({"preemption_mode": "recompute"}, lambda s: s.num_swaps == 0 == s.swapped_out_blocks),
    "host tier": (
        {"preemption_mode": "recompute", "prefix_cache_on_host": True},
        lambda s: s.swapped_in_blocks > 0 and s.prefix_hits > 0,
    ),
    "host tier and swap, int8": (
        {"preemption_mode": "swap", "prefix_cache_on_host": True, "kv_cache_dtype": "int8"},
        lambda s: s.num_swaps > 0 and s.prefix_hits > 0,
    ),
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def jobs(smollm2_path: Path) -> list[Job]:
    """Prompts that begin at different words, and answers long enough to need another block or two."""
    ids = octavo.build.load_tokenizer(smollm2_path, None).encode(ALICE, False)
    return [
        Job(ids[7 * number :][:length], greedy_params(14 + number, logprobs=2)) for number, length in enumerate(LENGTHS)
    ]


@pytest.fixture(scope="module")
def alone(smollm2_path: Path, jobs: list[Job]) -> Callable[[str], list[Any]]:
    """The answers in a large pool, one at a time, nothing cached, for a type of KV cache."""
    known: dict[str, list[Any]] = {}

    def answers(kv_cache_dtype: str) -> list[Any]:
        if kv_cache_dtype not in known:
            large = SETTINGS | {"num_blocks": 40, "swap_space": 0, "enable_prefix_caching": False}
            driver = Driver(smollm2_path, checks=False, kv_cache_dtype=kv_cache_dtype, **large)
            known[kv_cache_dtype] = all_bits(run_apart(driver, jobs))
        return known[kv_cache_dtype]

    return answers


@pytest.mark.parametrize("way", WAYS)
def test_bit_for_bit(way: str, smollm2_path: Path, jobs: list[Job], alone: Callable[[str], list[Any]]) -> None:
    """The host tier twice: the second time finds there what the first has left."""
    settings, is_proof = WAYS[way]
    driver = Driver(smollm2_path, **TINY | settings)
    expected = alone(settings.get("kv_cache_dtype", "auto"))
    for _ in range(2 if "prefix_cache_on_host" in settings else 1):
        assert all_bits(driver.run(jobs)) == expected
    stats = driver.stats
    assert stats.num_preemptions > 0
    assert is_proof(stats), stats
    assert stats.num_swapped_blocks == 0
