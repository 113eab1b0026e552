"""A pooled prompt does not depend on its chunks, nor on being begun again."""

import random

import pytest

from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import UNITS_PER_ONE, Pooling
from octavo.engine.pooled import PooledPrompt

NUM_TOKENS = 37
STATES = [[(7 * i) % 11 - 5, i * UNITS_PER_ONE, -i] for i in range(NUM_TOKENS)]


def pooled_prompt(pooling: Pooling) -> PooledPrompt:
    sequence = Request("r", list(range(NUM_TOKENS)), SamplingParams(), max_tokens=4)
    sequence.pooling = pooling
    return PooledPrompt(sequence)


def units(start: int, end: int) -> list[int]:
    return [sum(column) for column in zip(*STATES[start:end], strict=True)]


@pytest.mark.parametrize("seed", range(30))
def test_a_mean_in_chunks(seed: int) -> None:
    rng = random.Random(seed)
    pooled, start = pooled_prompt("mean"), 0
    while start < NUM_TOKENS:
        if rng.random() < 0.1:
            start = 0  # preempted
        count = rng.randint(1, 9)
        pooled.add(start, count, units(start, min(start + count, NUM_TOKENS)))
        start += count
    assert pooled.vector() == [each / (UNITS_PER_ONE * NUM_TOKENS) for each in units(0, NUM_TOKENS)]


def test_the_last() -> None:
    pooled = pooled_prompt("last")
    for _ in range(2):  # the second time after a preemption
        pooled.add(NUM_TOKENS - 3, 3, STATES[-1])
    assert pooled.vector() == [each / UNITS_PER_ONE for each in STATES[-1]]
