"""Candidates without a model: fixed by their context, and distributed as is said."""

import math

import pytest

from octavo.bench.candidates import DECILES, candidates


def test_they_are_fixed_by_the_whole_context() -> None:
    assert candidates([1, 2, 3], 8) == candidates([1, 2, 3], 8)
    assert candidates([1, 2, 3], 8) != candidates([4, 2, 3], 8)


def test_they_are_ranked_different_and_less_than_everything() -> None:
    for first in range(50):
        best = candidates([first], 12)
        logprobs = [logprob for _, logprob in best]
        assert logprobs == sorted(logprobs, reverse=True)
        assert sorted(token_id for token_id, _ in best) == list(range(12))
        assert sum(map(math.exp, logprobs)) < 1


def test_the_first_tokens_probability_has_the_deciles() -> None:
    drawn = sorted(math.exp(dict(candidates([number], 4))[0]) for number in range(4000))
    for tenth in range(1, 10):
        assert drawn[tenth * 400] == pytest.approx(DECILES[tenth], abs=0.03)
