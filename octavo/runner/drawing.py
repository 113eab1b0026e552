"""From logits to weights over the tokens, and from one uniform number to a token: the specification, one row at a time.

A weight is a whole number of units of 2**-40, where the best token has weight 1. Sums of whole numbers are exact: in
whatever order a back end adds, over however many lanes, the same tokens are kept and the same one is drawn. Before
that, each number of fp32 goes through the same few operations, each of which rounds once, on any machine.
"""

import math

import numpy as np
from numpy.typing import NDArray

from octavo.core.sampling_params import SamplingParams
from octavo.runner.ranking import Row, rank_ids, top_ids

Weights = NDArray[np.int64]
"""Of one row, [vocab], in units."""

MIN_TEMPERATURE = 1e-5
"""Lower temperatures than this are drawn at this one: only exact ties and gaps below 1e-4 still compete."""

UNIT_BITS = 40
"""Fits sums over 2**23 tokens into 64 bits. What is less likely than 2**-41 of the best token has no weight."""

_LOWEST = np.float32(-29.0)
"""e**-29 is less than half a unit."""

_COEFFICIENTS = [1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1]
"""Of the polynomial of Cephes' expf, highest power first."""


def inverse_temperature(temperature: float) -> np.float32:
    """What differences of logits are multiplied by."""
    return np.float32(1.0 / max(temperature, MIN_TEMPERATURE))


def exponentials(logits: Row, scale: np.float32 = np.float32(1.0)) -> Row:  # noqa: B008 (a number)
    """e**((logit - best) * scale), float32 within 2 units in the last place; of what lies below -29, e**-29.
    ``logits`` holds no NaN, and its greatest number is finite."""
    with np.errstate(over="ignore"):  # huge gaps become -inf
        x = np.maximum((logits - logits.max()) * scale, _LOWEST)
    round_away = np.float32(12582912.0)  # 1.5 * 2**23: adding and taking it away rounds to a whole number
    n = x * np.float32(1.44269504) + round_away - round_away
    r = n * np.float32(-0.693359375) + x
    r = n * np.float32(2.12194440e-4) + r
    p = np.full_like(x, _COEFFICIENTS[0])
    for coefficient in _COEFFICIENTS[1:]:
        p = p * r + np.float32(coefficient)
    p = p * (r * r) + r + np.float32(1.0)
    scaled: Row = np.ldexp(p, n.astype(np.int32))
    return scaled


def in_units(exponentials: Row) -> Weights:
    """Rounded to the nearest, half to even."""
    return np.rint(exponentials.astype(np.float64) * 2.0**UNIT_BITS).astype(np.int64)


def token_weights(logits: Row, params: SamplingParams) -> Weights:
    """Unnormalized probabilities [vocab]; tokens filtered out have 0.

    In this order: temperature; top_k (the k best, ties by the lower id); top_p (the fewest best of those that hold at
    least top_p of their mass, never none); min_p (those with at least min_p times the probability of the best).
    ``logits`` holds no NaN and at least one finite value, and no +inf.
    """
    relative = exponentials(logits, inverse_temperature(params.temperature))
    weights = in_units(relative)
    if 0 < params.top_k < len(logits):
        weights = _only(weights, top_ids(logits, params.top_k))
    if params.top_p < 1.0:
        ranked = rank_ids(logits, np.flatnonzero(weights))
        running = np.cumsum(weights[ranked])
        weights = _only(weights, ranked[: int(np.searchsorted(running, needed_mass(running[-1], params.top_p))) + 1])
    weights[relative < np.float32(params.min_p)] = 0
    return weights


def needed_mass(mass: int, top_p: float) -> int:
    """The least whole number of units that is at least ``top_p`` of ``mass``, and at least 1."""
    return max(1, math.ceil(top_p * float(mass)))


def _only(weights: Weights, token_ids: NDArray[np.int64]) -> Weights:
    kept = np.zeros_like(weights)
    kept[token_ids] = weights[token_ids]
    return kept


def draw(weights: Weights, uniform: float) -> int:
    """The token at ``uniform`` (in [0, 1), a multiple of 2**-53) of the total weight, tokens laid end to end in the
    order of their ids."""
    running = np.cumsum(weights)
    target = int(uniform * 2.0**53) * int(running[-1]) >> 53
    return int(np.searchsorted(running, target, side="right"))
