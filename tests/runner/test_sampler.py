"""Randomness by position, and nothing that a draw depends on beside it: B13, B14."""

import itertools

import numpy as np
import pytest
import torch

from octavo.core.sampling_params import SamplingParams
from octavo.runner.drawing import token_weights
from octavo.runner.randomness import uniform
from octavo.runner.row_sampling import RowSampling
from octavo.runner.sampler import Sampler
from tests.runner.sampling import PEAKED, generate, new_row, sample


def test_uniform_is_fixed_and_depends_on_each_argument() -> None:
    """The value is pinned: answers to old seeds must not change by accident."""
    assert uniform(5, 0, 12) == 0.5215705155320247
    numbers = {uniform(*key) for key in itertools.product((0, 5, 2**63 - 1), (0, 1, 63), (0, 12, 100_000))}
    assert len(numbers) == 27
    assert all(0.0 <= number < 1.0 for number in numbers)


def wandering_logits(last: int) -> list[float]:
    return [float(value) for value in np.random.default_rng(last).normal(scale=2.0, size=301)]


NEIGHBOURS = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.5, top_k=4),
    SamplingParams(top_p=0.5, frequency_penalty=1.0),
    SamplingParams(repetition_penalty=1.5, logprobs=5),
    SamplingParams(min_p=0.2, logit_bias={3: 50.0}),
    SamplingParams(min_tokens=3, allowed_token_ids=[1, 2]),
    SamplingParams(temperature=100.0),
]


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(temperature=0.8, top_p=0.9), SamplingParams(top_k=40, min_p=0.01)]
)
def test_b14_seed_gives_the_same_alone_and_among_any_neighbours(params: SamplingParams) -> None:
    alone = generate(wandering_logits, new_row(params, [1, 2], seed=5), 20)
    for seed in (1, 5):
        neighbours = [new_row(other, [9], row_id=1 + index, seed=seed) for index, other in enumerate(NEIGHBOURS)]
        assert generate(wandering_logits, new_row(params, [1, 2], seed=5), 20, neighbours) == alone
    assert generate(wandering_logits, new_row(params, [1, 2], seed=6), 20) != alone
    assert generate(wandering_logits, new_row(params, [1, 2], seed=5), 20) == alone


def test_b14_ten_seeds_give_ten_outputs_at_both_ends_of_the_range() -> None:
    seeds = [0, 1, 2, 3, 2**31, 2**32, 2**62, 2**63 - 2, 2**63 - 1, 5]
    outputs = {tuple(generate(wandering_logits, new_row(SamplingParams(), seed=seed), 20)) for seed in seeds}
    assert len(outputs) == 10


def test_b13_choices_differ_when_drawn_and_agree_when_greedy() -> None:
    drawn = [
        tuple(generate(wandering_logits, new_row(SamplingParams(), choice_index=choice), 30)) for choice in range(4)
    ]
    assert len(set(drawn)) == 4
    greedy = [
        tuple(generate(wandering_logits, new_row(SamplingParams(temperature=0), choice_index=choice), 30))
        for choice in range(4)
    ]
    assert len(set(greedy)) == 1


def test_weights_and_logprobs_do_not_depend_on_where_the_row_lies_in_memory() -> None:
    """Rows of an odd width stand at every alignment: the same bits come out of each."""
    width = 5003
    row = np.random.default_rng(8).normal(scale=3.0, size=width).astype(np.float32)
    params = SamplingParams(top_p=0.99, temperature=0.9, logprobs=5)
    sampler = Sampler(width, width)
    batch = torch.from_numpy(np.stack([row] * 8))
    states = [sampler.new_row(new_row(params, row_id=row_id)) for row_id in range(8)]
    assert len({token_weights(batch[index].numpy(), params).tobytes() for index in range(8)}) == 1
    samples = sample(sampler, batch, states, [4] * 8)
    assert len(set(samples.token_ids)) == 1
    assert len(set(samples.logprobs.values())) == 1


def test_sampling_changes_neither_logits_nor_state() -> None:
    sampler = Sampler(len(PEAKED), len(PEAKED))
    params = SamplingParams(logit_bias={0: 5.0}, frequency_penalty=1.0, min_p=0.1, top_k=3, logprobs=2)
    row: RowSampling = sampler.new_row(new_row(params, [1, 2, 3], 1))
    logits = torch.tensor([PEAKED])
    first = sample(sampler, logits, [row], [9])
    assert sample(sampler, logits, [row], [9]) == first
    assert logits.tolist() == [PEAKED]
