"""Draws follow the exact distributions, at the extremes too."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from octavo.core.sampling_params import SamplingParams
from octavo.runner.drawing import UNIT_BITS, draw, exponentials, in_units, token_weights
from octavo.runner.sampler import Sampler
from tests.runner.sampling import INF, PEAKED, new_row, sample, sample_one


def exact_probabilities(logits: Sequence[float], params: SamplingParams) -> list[float]:
    """The definition, in plain Python: temperature, top_k, top_p, min_p, ties by the lower id."""
    scaled = [math.exp((value - max(logits)) / params.temperature) for value in logits]
    ranked = sorted(range(len(logits)), key=lambda token_id: (-logits[token_id], token_id))
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    mass = sum(scaled[token_id] for token_id in ranked)
    running = itertools.accumulate(scaled[token_id] for token_id in ranked)
    needed = 1 + sum(total < params.top_p * mass * (1 - 1e-9) for total in running)
    kept = [token_id for token_id in ranked[:needed] if scaled[token_id] >= params.min_p]
    total = sum(scaled[token_id] for token_id in kept)
    return [scaled[token_id] / total if token_id in kept else 0.0 for token_id in range(len(logits))]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=100.0),
        SamplingParams(temperature=0.7, top_k=3),
        SamplingParams(temperature=1.0, top_p=0.8),
        SamplingParams(temperature=1.3, min_p=0.3),
        SamplingParams(temperature=0.9, top_k=5, top_p=0.9, min_p=0.2),
    ],
)
def test_draws_follow_the_exact_distribution(params: SamplingParams) -> None:
    """Chi-square over 4,000 positions; the bound is the 99.9 % quantile at 6 degrees of freedom."""
    expected = exact_probabilities(PEAKED, params)
    num_draws = 4000
    sampler = Sampler(len(PEAKED), len(PEAKED))
    row = sampler.new_row(new_row(params, seed=11))
    logits = torch.tensor([PEAKED])
    counts = Counter(sample(sampler, logits, [row], [position]).token_ids[0] for position in range(num_draws))
    assert {token_id for token_id in counts if expected[token_id] == 0.0} == set()
    chi_square = sum(
        (counts[token_id] - num_draws * share) ** 2 / (num_draws * share)
        for token_id, share in enumerate(expected)
        if share
    )
    assert chi_square < 22.46


@given(
    logits=st.lists(st.integers(-4, 4).map(float) | st.just(-INF), min_size=1, max_size=12),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.integers(-1, 14),
    top_p=st.sampled_from([5e-324, 0.3, 0.5, 0.77, 0.9, 0.999, 1.0 - 2**-53, 1.0]),
    min_p=st.sampled_from([0.0, 0.013, 0.4, 1.0]),
)
def test_weights_equal_the_definition(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    assume(max(logits) > -INF)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = exact_probabilities(logits, params)
    assume(not nearly_decided_by_rounding(logits, params))
    weights = token_weights(np.array(logits, dtype=np.float32), params)
    np.testing.assert_allclose(weights / weights.sum(), expected, rtol=1e-5, atol=1e-12)


def nearly_decided_by_rounding(logits: list[float], params: SamplingParams) -> bool:
    """Whether a mass stands so near to a bound that float32 and Python may differ about it."""
    unfiltered = SamplingParams(temperature=params.temperature, top_k=params.top_k)
    shares = sorted(exact_probabilities(logits, unfiltered), reverse=True)
    running = list(itertools.accumulate(shares))
    near_top_p = any(abs(total - params.top_p) < 1e-5 for total in running) and params.top_p < 1.0
    return near_top_p or any(0 < abs(share / shares[0] - params.min_p) < 1e-5 for share in shares)


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.95, 0.999999])
@pytest.mark.parametrize("spread", [0.01, 1.0, 10.0])
def test_nucleus_of_a_large_vocabulary(top_p: float, spread: float) -> None:
    """The tokens left out of the sort are never part of the nucleus: compared with a full sort in float64."""
    logits = np.random.default_rng(3).normal(scale=spread, size=50_257).astype(np.float32)
    weights = token_weights(logits, SamplingParams(top_p=top_p))
    probabilities = np.exp(logits.astype(np.float64) - logits.max())
    probabilities /= probabilities.sum()
    needed = int(np.searchsorted(np.cumsum(np.sort(probabilities)[::-1]), top_p)) + 1
    num_kept = np.count_nonzero(weights)
    assert abs(num_kept - needed) <= 1 + 1e-4 * needed
    assert set(np.flatnonzero(weights)) == set(np.argsort(-logits, kind="stable")[:num_kept])


def test_draw_walks_the_tokens_in_the_order_of_their_ids() -> None:
    weights = np.zeros(1000, dtype=np.int64)
    weights[[3, 400, 999]] = [2**50, 2**51, 2**50]
    drawn = [draw(weights, number) for number in (0.0, 0.2499, 0.25, 0.7499, 0.75, 1.0 - 2.0**-53)]
    assert drawn == [3, 3, 400, 400, 999, 999]


@pytest.mark.parametrize("size", [1, 255, 256, 257, 1000])
def test_draw_never_returns_a_token_of_weight_zero(size: int) -> None:
    weights = np.random.default_rng(size).integers(2**40, size=size)
    weights[::3] = 0.0
    weights[-(size // 2) :] = 0.0
    weights[size // 3] = 1
    numbers = [0.0, 2.0**-53, *np.linspace(0, 1, 50, endpoint=False), 1.0 - 2.0**-53]
    assert all(weights[draw(weights, float(number))] > 0 for number in numbers)


def test_greedy_takes_the_lower_id_of_equals() -> None:
    assert sample_one([0.0, 2.0, 2.0, 1.0], new_row(SamplingParams(temperature=0))) == 1


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-5, 1e-3])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    row = new_row(SamplingParams(temperature=temperature))
    assert {sample_one([0.0, 2.0, 1.9, 1.0], row, position=position) for position in range(50)} == {1}


def test_top_k_1_is_greedy_also_at_ties() -> None:
    row = new_row(SamplingParams(temperature=100.0, top_k=1))
    assert {sample_one([0.0, 2.0, 2.0, -0.0], row, position=position) for position in range(50)} == {1}
    assert sample_one([-3.0, -0.0, 0.0], row) == 1  # -0.0 and 0.0 are equal


def test_top_k_beyond_the_vocabulary_is_no_filter() -> None:
    everything = token_weights(np.array(PEAKED, dtype=np.float32), SamplingParams())
    huge = token_weights(np.array(PEAKED, dtype=np.float32), SamplingParams(top_k=10**12))
    np.testing.assert_array_equal(huge, everything)


@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SamplingParams(temperature=100, top_p=0.5)])
def test_one_finite_logit_is_always_drawn(params: SamplingParams) -> None:
    logits = [-INF] * 300
    logits[299] = -3e38
    assert {sample_one(logits, new_row(params), position=position) for position in range(20)} == {299}


def test_huge_logits_do_not_overflow() -> None:
    assert sample_one([-3e38, 3e38, 0.0], new_row(SamplingParams(temperature=0.01, top_p=0.9))) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, INF, -INF])
def test_unusable_logits_are_a_fault_of_their_row_alone(temperature: float, bad: float) -> None:
    sampler = Sampler(3, 3)
    rows = [sampler.new_row(new_row(SamplingParams(temperature=temperature), row_id=row_id)) for row_id in (41, 42)]
    logits = torch.tensor([[0.0, 1.0, 2.0], [bad] * 3 if bad == -INF else [0.0, bad, 1.0]])
    samples = sample(sampler, logits, rows, [1, 1])
    assert list(samples.faults) == [42]
    assert not samples.faults[42].invalid
    assert "no usable logits" in samples.faults[42].message
    assert samples.token_ids[0] == sample(sampler, logits[:1], rows[:1], [1]).token_ids[0]


def test_exponentials_are_right_and_best_is_exactly_one() -> None:
    logits = np.linspace(-29.0, 0.0, 100_001, dtype=np.float32)
    relative = exponentials(logits)
    np.testing.assert_allclose(relative, np.exp(logits.astype(np.float64)), rtol=2.5e-7)
    assert relative[-1] == 1.0
    assert in_units(relative)[-1] == 2**UNIT_BITS
    lost = exponentials(np.array([-np.inf, -3e38, -29.5, 0.0], dtype=np.float32))
    assert in_units(lost).tolist() == [0, 0, 0, 2**UNIT_BITS]


def test_sums_of_the_largest_vocabularies_are_exact() -> None:
    logits = np.zeros(2**20, dtype=np.float32)
    assert int(token_weights(logits, SamplingParams()).sum()) == 2 ** (20 + UNIT_BITS)
    assert draw(token_weights(logits, SamplingParams()), 1.0 - 2.0**-53) == 2**20 - 1
