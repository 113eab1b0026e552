"""SmolLM2 under an adversary: random arrivals, pools and budgets, free blocks given out in random order, requests
preempted at random steps. Every answer is bit for bit the one that its request has alone in a large pool.

``make soak`` runs 500 schedules, ``make test`` the first few.
"""

from pathlib import Path
from random import Random
from typing import Any

import pytest

import octavo.build
from octavo.core.sampling_params import SamplingParams
from octavo.engine.messages import OutputDelta
from tests.real.text import ALICE
from tests.support.driving import Driver, Job, all_bits, at_steps, run_apart

MAX_LEN = 64
NUM_SCHEDULES = 500
NUM_ALWAYS = 3


class Adversary(Driver):
    """Before every step it shuffles the free blocks and, once early and then now and then, takes the blocks of a
    running request."""

    def __init__(self, model: Path, random: Random, **settings: Any) -> None:
        super().__init__(model, **settings)
        self._random = random
        self._num_spared = random.randint(0, 2)  # an answer of four tokens gives three chances

    def step(self) -> list[OutputDelta]:
        scheduler = self.engine._scheduler
        self._random.shuffle(scheduler.kv.pool._free)
        idle = [request for request in scheduler.running if not request.num_in_flight]
        if idle:
            self._num_spared -= 1
        if idle and (self._num_spared == -1 or self._random.random() < 0.15):
            scheduler.population.preempt(self._random.choice(idle))
        return super().step()


@pytest.fixture(scope="module")
def jobs(smollm2_path: Path) -> list[Job]:
    """Greedy, seeded with choices, with penalties; half of the prompts begin alike."""
    ids = octavo.build.load_tokenizer(smollm2_path, None).encode(ALICE, False)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "seed": 5, "n": 2, "top_p": 0.9},
        {"temperature": 0.0, "repetition_penalty": 1.4, "presence_penalty": 0.5},
        {"temperature": 1.0, "seed": 6, "top_k": 50},
    ]
    lengths = [2, 5, 11, 16, 17, 21, 28, 32, 33, 37, 40, 47]
    return [
        Job(
            ids[(0 if number % 2 else 9 * number) :][:length],
            SamplingParams(max_tokens=4 + number, ignore_eos=True, logprobs=2, **kinds[number % len(kinds)]),
        )
        for number, length in enumerate(lengths)
    ]


@pytest.fixture(scope="module")
def alone(smollm2_path: Path, jobs: list[Job]) -> list[list[Any]]:
    settings: dict[str, Any] = {"num_blocks": 40, "max_model_len": MAX_LEN, "enable_prefix_caching": False}
    return all_bits(run_apart(Driver(smollm2_path, checks=False, **settings), jobs))


def random_settings(random: Random) -> dict[str, Any]:
    """A pool of one to three times the longest sequence, and everything else that must not matter."""
    block_size = random.choice([4, 8, 16])
    max_num_seqs = random.randint(2, 6)
    is_cached = random.random() < 0.7
    swap_space = random.choice([0, 0.003, 0.01])
    return {
        "max_model_len": MAX_LEN,
        "block_size": block_size,
        "num_blocks": random.randint(MAX_LEN // block_size, 3 * MAX_LEN // block_size),
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max(max_num_seqs, random.choice([6, 16, 48, 512])),
        "enable_prefix_caching": is_cached,
        "eviction_policy": random.choice(["lru", "reuse"]),
        "preemption_mode": random.choice(["auto", "swap", "recompute"]),
        "swap_space": swap_space,
        "prefix_cache_on_host": is_cached and swap_space > 0 and random.random() < 0.5,
    }


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=pytest.mark.slow if seed < NUM_ALWAYS else pytest.mark.soak)
        for seed in range(NUM_SCHEDULES)
    ],
)
def test_bit_for_bit(seed: int, smollm2_path: Path, jobs: list[Job], alone: list[list[Any]]) -> None:
    random = Random(seed)
    adversary = Adversary(smollm2_path, random, speculation=["ngram", "off"][seed % 2], **random_settings(random))
    chosen = random.sample(range(len(jobs)), random.randint(3, 6))
    answers = adversary.run(at_steps([jobs[number] for number in chosen], [random.randrange(12) for _ in chosen]))
    assert all_bits(answers) == [alone[number] for number in chosen]
    assert adversary.stats.num_preemptions > 0
