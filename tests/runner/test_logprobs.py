"""Log probabilities: raw, ranked, of prompts."""

import math

import pytest
import torch

from octavo.core.sampling_params import SamplingParams
from octavo.core.step import TokenLogprobs
from octavo.runner.sampler import Sampler
from tests.runner.sampling import INF, PEAKED, native_sampling, new_row, sample


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
