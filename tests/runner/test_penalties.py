"""What changes logits before a draw: penalties, masks, bias; B17, B25, B52."""

import pytest
import torch

from octavo.core.sampling_params import SamplingParams
from octavo.runner.sampler import Sampler
from tests.runner.sampling import PEAKED, generate, new_row, sample, sample_one

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


def test_penalties_on_the_largest_logits_of_either_sign_warn_of_nothing() -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=100.0, frequency_penalty=2.0)
    assert sample_one([3e38, -3e38, 1.0], new_row(params, (0, 1), 0)) == 0


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
