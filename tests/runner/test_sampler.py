"""The sampler: exact distributions, randomness by position, masks, penalties, logprobs; B13, B14, B17, B25, B52."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from octavo.core.sampling_params import SamplingParams
from octavo.core.step import NewRow, TokenLogprobs
from octavo.kernels.cpu import CpuOps
from octavo.kernels.reference import ReferenceOps
from octavo.kernels.sampling import Sampling
from octavo.runner.drawing import UNIT_BITS, draw, exponentials, in_units, token_weights
from octavo.runner.randomness import uniform
from octavo.runner.row_sampling import RowSampling
from octavo.runner.sampler import Sampler, Samples

INF = math.inf


def new_row(
    params: SamplingParams,
    token_ids: Sequence[int] = (0,),
    num_prompt_tokens: int | None = None,
    *,
    row_id: int = 0,
    seed: int = 7,
    choice_index: int = 0,
    stop_token_ids: Sequence[int] = (),
) -> NewRow:
    return NewRow(
        row_id=row_id,
        token_ids=tuple(token_ids),
        num_prompt_tokens=len(token_ids) if num_prompt_tokens is None else num_prompt_tokens,
        block_ids=(),
        params=params,
        seed=seed,
        choice_index=choice_index,
        stop_token_ids=frozenset(stop_token_ids),
    )


@cache
def native_sampling() -> Sampling:
    return CpuOps().sampling()


def sample(sampler: Sampler, logits: Tensor, rows: Sequence[RowSampling], positions: Sequence[int]) -> Samples:
    """Row by row, as the specification says; the native back end gives the same for the whole batch, bit for bit."""
    best_ids = ReferenceOps().argmax(logits, sampler.num_valid_tokens)
    samples = sampler.sample(logits, best_ids, list(rows), positions)
    native = Sampler(sampler.vocab_size, sampler.num_valid_tokens, native_sampling())
    assert native.sample(logits, best_ids, list(rows), positions) == samples
    return samples


def sample_one(logits: Sequence[float], row: NewRow, num_valid: int | None = None, position: int = 5) -> int:
    sampler = Sampler(len(logits), len(logits) if num_valid is None else num_valid)
    return sample(sampler, torch.tensor([logits]), [sampler.new_row(row)], [position]).token_ids[0]


def generate(
    logits_after: Callable[[int], Sequence[float]],
    row: NewRow,
    num_tokens: int,
    neighbours: Sequence[NewRow] = (),
    bad_word_ids: Sequence[tuple[int, ...]] = (),
    resume_at: int | None = None,
) -> list[int]:
    """Draw ``num_tokens`` as a runner does; the row stands after its neighbours, and at ``resume_at`` output tokens it
    is preempted and comes back as a new row."""
    vocab = len(logits_after(0))
    sampler = Sampler(vocab, vocab)
    states = [sampler.new_row(neighbour) for neighbour in neighbours] + [sampler.new_row(row, bad_word_ids)]
    tokens = [list(neighbour.token_ids) for neighbour in neighbours] + [list(row.token_ids)]
    for index in range(num_tokens):
        if index == resume_at:
            params, prompt = row.params, row.num_prompt_tokens
            states[-1] = sampler.new_row(
                new_row(params, tokens[-1], prompt, stop_token_ids=tuple(row.stop_token_ids)), bad_word_ids
            )
        logits = torch.tensor([logits_after(ids[-1]) for ids in tokens], dtype=torch.float32)
        samples = sample(sampler, logits, states, [len(ids) for ids in tokens])
        for state, ids, token_id in zip(states, tokens, samples.token_ids, strict=True):
            state.append(token_id)
            ids.append(token_id)
    return tokens[-1][len(row.token_ids) :]


# Exact distributions


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


PEAKED = [0.5, 2.0, -1.0, 1.5, 1.5, -INF, 0.0, 2.0]


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


# Greedy, extremes


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


# Randomness


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


# Penalties: B17. Ids: a, x, p, g.

A, X, P, G = 1, 2, 3, 4


def weak_script(last: int) -> list[float]:
    """SCRIPT-W: p and a are followed by a (2.0) or g (1.0), everything else scores 0."""
    logits = [0.0] * 6
    if last in (P, A):
        logits[A], logits[G] = 2.0, 1.0
    return logits


B17 = [
    ([A, X, P], SamplingParams(temperature=0, presence_penalty=1.5), [A, G]),
    ([A, X, P], SamplingParams(temperature=0, repetition_penalty=3.0), [G]),
    ([X, P], SamplingParams(temperature=0, presence_penalty=1.5), [A, G]),
    ([X, P], SamplingParams(temperature=0, frequency_penalty=0.7), [A, A, G]),
    ([G, X, P], SamplingParams(temperature=0, presence_penalty=-1.5), [A, A, A]),
    ([G, X, P], SamplingParams(temperature=0, repetition_penalty=0.4), [G]),
]


@pytest.mark.parametrize(("prompt", "params", "expected"), B17)
@pytest.mark.parametrize("neighbour", [None, 0, A])
def test_b17_penalties_count_the_right_tokens(
    prompt: list[int], params: SamplingParams, expected: list[int], neighbour: int | None
) -> None:
    row = new_row(params, prompt)
    beside = [] if neighbour is None else [new_row(params, [neighbour] * 200)]
    for resume_at in range(len(expected)):
        assert generate(weak_script, row, len(expected), beside, resume_at=resume_at) == expected


def test_b17_negative_penalty_promotes_what_was_said() -> None:
    row = new_row(SamplingParams(temperature=0, presence_penalty=-1.5), [X, G, P], num_prompt_tokens=1)
    assert generate(weak_script, row, 1) == [G]


def test_repetition_penalty_multiplies_negative_logits() -> None:
    row = new_row(SamplingParams(temperature=0, repetition_penalty=2.0), [0])
    assert sample_one([-1.0, -1.5], row) == 1
    assert sample_one([-1.0, -2.5], row) == 0


@pytest.mark.parametrize("penalty", [1e-300, 5e-324])
def test_tiny_repetition_penalty_stays_finite(penalty: float) -> None:
    assert sample_one([2.0, 3.0, 0.0], new_row(SamplingParams(repetition_penalty=penalty), [0])) == 0


def test_many_distinct_tokens_are_all_counted() -> None:
    """More tokens than the first arrays hold."""
    row = new_row(SamplingParams(temperature=0, frequency_penalty=1.0), [0])
    cycling = generate(lambda last: [0.0] * 500, row, 1000)
    assert sorted(cycling[:500]) == list(range(500))
    assert sorted(cycling[500:]) == list(range(500))


# Masks and bias


@pytest.mark.parametrize("bias", [{}, {5: 100.0}])
@pytest.mark.parametrize("resume_at", [None, 3])
def test_b25_stop_ids_are_masked_until_min_tokens(bias: dict[int, float], resume_at: int | None) -> None:
    """Best EOS1 (5), then EOS2 (4) and an ordinary stop id (3), then x (2): five x, then the end, also under +100."""
    row = new_row(
        SamplingParams(temperature=0, min_tokens=5, max_tokens=8, logit_bias=bias), [1], stop_token_ids=[3, 4, 5, 999]
    )
    neighbour = new_row(SamplingParams(temperature=0), [1])
    output = generate(lambda last: [0.0, 0.0, 1.0, 1.5, 1.8, 2.0], row, 6, [neighbour], resume_at=resume_at)
    assert output == [X, X, X, X, X, 5]
    assert generate(lambda last: [0.0, 0.0, 1.0, 1.5, 1.8, 2.0], neighbour, 1, [row]) == [5]


def test_allowed_token_ids_are_all_that_is_drawn() -> None:
    row = new_row(SamplingParams(temperature=100.0, allowed_token_ids=[2, 6]))
    assert {sample_one(PEAKED, row, position=position) for position in range(100)} == {2, 6}


def test_masks_that_leave_nothing_are_an_error_of_the_request() -> None:
    row = new_row(SamplingParams(temperature=1.0, allowed_token_ids=[5], min_tokens=2), stop_token_ids=[5])
    sampler = Sampler(6, 6)
    fault = sample(sampler, torch.zeros(1, 6), [sampler.new_row(row)], [1]).faults[row.row_id]
    assert fault.invalid
    assert "leave no token to draw after 0 output tokens" in fault.message


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logit_bias_of_100_forces_and_forbids(temperature: float) -> None:
    force = new_row(SamplingParams(temperature=temperature, logit_bias={6: 100.0}))
    assert {sample_one(PEAKED, force, position=position) for position in range(100)} == {6}
    forbid = new_row(SamplingParams(temperature=temperature, logit_bias={1: -100.0, 7: -100.0}))
    assert {sample_one(PEAKED, forbid, position=position) for position in range(100)}.isdisjoint({1, 7})


@pytest.mark.parametrize("resume_at", [None, 1, 2, 3])
def test_bad_words_mask_the_last_token_where_the_rest_stands(resume_at: int | None) -> None:
    """0 after 0 after 0 is forbidden, and 3 always; the prompt is no part of a bad word."""
    row = new_row(SamplingParams(temperature=0, bad_words=["two", "one"]), [0, 0])
    output = generate(lambda last: [3.0, 2.0, 0.0, 4.0], row, 6, bad_word_ids=[(0, 0, 0), (3,)], resume_at=resume_at)
    assert output == [0, 0, 1, 0, 0, 1]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, logprobs=5),
        SamplingParams(temperature=2.0, logprobs=5),
        SamplingParams(temperature=2.0, top_p=0.9, logprobs=5, logit_bias={505: 100.0}),
        SamplingParams(temperature=0, allowed_token_ids=[505, 7], logprobs=5),
    ],
)
def test_b52_model_rows_beyond_the_tokenizer_are_never_drawn_or_listed(params: SamplingParams) -> None:
    logits = torch.zeros(1, 512)
    logits[0, 505] = 50.0
    logits[0, 7] = 3.0
    sampler = Sampler(512, 500)
    row = sampler.new_row(new_row(params, [505]))
    for position in range(50):
        samples = sample(sampler, logits, [row], [position])
        assert samples.token_ids[0] < 500
        listed = samples.logprobs[0].top
        assert [token_id for token_id, _ in listed] == [7, 0, 1, 2, 3]


# Logprobs


def test_logprobs_are_raw_and_ranked() -> None:
    """D9: neither temperature nor bias nor masks show; -inf stays -inf; ties by the lower id."""
    params = SamplingParams(temperature=0, logprobs=8, logit_bias={2: 100.0}, repetition_penalty=2.0)
    sampler = Sampler(len(PEAKED), len(PEAKED))
    rows = [sampler.new_row(new_row(params, row_id=17)), sampler.new_row(new_row(SamplingParams(), row_id=18))]
    samples = sample(sampler, torch.tensor([PEAKED, PEAKED]), rows, [3, 3])
    assert list(samples.logprobs) == [17]
    entry = samples.logprobs[17]
    expected = torch.tensor(PEAKED, dtype=torch.float64).log_softmax(0).tolist()
    assert (entry.token_id, entry.rank) == (2, 7)
    assert entry.logprob == pytest.approx(expected[2], abs=1e-6)
    assert [token_id for token_id, _ in entry.top] == [1, 7, 3, 4, 0, 6, 2, 5]
    assert [value for _, value in entry.top] == pytest.approx([expected[token_id] for token_id, _ in entry.top])
    assert entry.top[-1] == (5, -INF)


def test_logprobs_0_gives_the_drawn_token_alone() -> None:
    sampler = Sampler(3, 3)
    row = sampler.new_row(new_row(SamplingParams(temperature=0, logprobs=0)))
    entry = sample(sampler, torch.zeros(1, 3), [row], [3]).logprobs[0]
    assert entry == TokenLogprobs(0, entry.logprob, 1, ())
    assert entry.logprob == pytest.approx(-math.log(3))


def test_prompt_logprobs_equal_log_softmax() -> None:
    logits = torch.randn(6, 5000, generator=torch.Generator().manual_seed(1)) * 4
    token_ids = [0, 4999, 17, 17, 250, 4000]
    entries = Sampler(5000, 4990).prompt_logprobs(logits, token_ids, 3)
    assert Sampler(5000, 4990, native_sampling()).prompt_logprobs(logits, token_ids, 3) == entries
    expected = logits.double().log_softmax(1)
    for entry, values, token_id in zip(entries, expected, token_ids, strict=True):
        best = values[:4990].topk(3)
        assert entry.token_id == token_id
        assert entry.logprob == pytest.approx(values[token_id].item(), abs=1e-5)
        assert entry.rank == 1 + int((values[:4990] > values[token_id]).sum())
        assert [best_id for best_id, _ in entry.top] == best.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.parametrize("is_native", [False, True])
def test_prompt_logprobs_of_nan_are_an_error(is_native: bool) -> None:
    sampler = Sampler(3, 3, native_sampling() if is_native else None)
    with pytest.raises(ValueError, match="no usable logits"):
        sampler.prompt_logprobs(torch.tensor([[0.0, math.nan, 1.0]]), [2], 1)


def test_sampling_changes_neither_logits_nor_state() -> None:
    sampler = Sampler(len(PEAKED), len(PEAKED))
    params = SamplingParams(logit_bias={0: 5.0}, frequency_penalty=1.0, min_p=0.1, top_k=3, logprobs=2)
    row: RowSampling = sampler.new_row(new_row(params, [1, 2, 3], 1))
    logits = torch.tensor([PEAKED])
    first = sample(sampler, logits, [row], [9])
    assert sample(sampler, logits, [row], [9]) == first
    assert logits.tolist() == [PEAKED]


def test_penalties_on_the_largest_logits_of_either_sign_warn_of_nothing() -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=100.0, frequency_penalty=2.0)
    assert sample_one([3e38, -3e38, 1.0], new_row(params, (0, 1), 0)) == 0


# Numbers


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
