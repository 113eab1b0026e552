"""B05: several choices, preemption by swapping, and no swap space, or too little."""

from pathlib import Path
from typing import Any

import pytest

from octavo.core.sampling_params import SamplingParams
from tests.support.driving import Driver, Job, all_bits, greedy_params, run_apart
from tests.support.models import RAND_VOCAB
from tests.support.parity import random_ids

SETTINGS: dict[str, Any] = {"block_size": 4, "max_num_seqs": 8, "max_model_len": 64, "preemption_mode": "swap"}
BLOCK_GIB = 4 * 4 * 2 * 2 * 16 * 4 / 2**30
"""A block of RAND: 4 tokens in 4 layers, keys and values of 2 heads of 16 numbers of 4 bytes."""
SWAP = pytest.mark.parametrize("num_host_blocks", [0, 4, 100])
CACHING = pytest.mark.parametrize("caching", [False, True], ids=["no cache", "cache"])


def choices(n: int, seed: int) -> Job:
    params = SamplingParams(n=n, temperature=1.0, seed=seed, max_tokens=20, ignore_eos=True, logprobs=2)
    return Job(random_ids(8, RAND_VOCAB, seed=seed), params)


def driver(rand: Path, num_blocks: int, num_host_blocks: int, caching: bool) -> Driver:
    space = num_host_blocks * BLOCK_GIB
    made = Driver(rand, num_blocks=num_blocks, swap_space=space, enable_prefix_caching=caching, **SETTINGS)
    assert made.stats.num_host_blocks == num_host_blocks
    return made


def check_alive_and_quiet(driver: Driver) -> None:
    (answer,) = driver.run([Job(random_ids(8, RAND_VOCAB, seed=99), greedy_params(4))])[0]
    assert len(answer.token_ids) == 4
    assert driver.stats.num_swapped_blocks == 0
    assert driver.stats.swapped_in_blocks <= driver.stats.swapped_out_blocks
    assert driver.stats.failed == 0


@CACHING
@SWAP
def test_b05_choices_without_swap_space(num_host_blocks: int, caching: bool, rand: Path) -> None:
    """Two requests of three choices, 17 blocks each when the prompt is shared, in a pool of 20."""
    jobs = [choices(3, seed=5), choices(3, seed=6)]
    alone = all_bits(run_apart(driver(rand, 200, 0, caching), jobs))
    small = driver(rand, 20, num_host_blocks, caching)
    assert all_bits(small.run(jobs)) == alone
    stats = small.stats
    assert stats.num_preemptions > 0
    assert caching or (stats.num_swaps > 0) == (num_host_blocks > 0)  # what is cached is not moved
    check_alive_and_quiet(small)


@CACHING
@SWAP
def test_b05_six_choices_that_do_not_fit_at_once_run_in_turns(num_host_blocks: int, caching: bool, rand: Path) -> None:
    """DECISION D3: 32 blocks at the peak in a pool of 16."""
    (alone,) = all_bits(driver(rand, 200, 0, caching).run([choices(6, seed=7)]))
    small = driver(rand, 16, num_host_blocks, caching)
    assert all_bits(small.run([choices(6, seed=7)])) == [alone]
    assert len({tuple(token_ids) for token_ids, _, _ in alone}) == 6
    assert small.stats.num_preemptions > 0
    check_alive_and_quiet(small)
