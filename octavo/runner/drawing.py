"""From logits to weights over the tokens, and from one uniform number to a token. One row at a time, always the whole
row in the order of token ids: its bits cannot depend on a neighbour, nor on which filters are on."""

import numpy as np
from numpy.typing import NDArray

from octavo.core.sampling_params import SamplingParams
from octavo.runner.ranking import Row, rank_ids, top_ids

MIN_TEMPERATURE = 1e-5
"""Lower temperatures than this are drawn at this one: only exact ties and gaps below 1e-4 still compete."""

_BLOCK = 256
"""Weights are summed in blocks, then the block that holds the draw is searched: far faster than one running sum."""


def token_weights(logits: Row, params: SamplingParams) -> Row:
    """Unnormalized probabilities [vocab], float32; the best token has weight 1, tokens filtered out have 0.

    In this order: temperature; top_k (the k best, ties by the lower id); top_p (the fewest best of those that hold at
    least top_p of their mass, never none); min_p (those with at least min_p times the probability of the best).
    ``logits`` holds no NaN and at least one finite value, and no +inf.
    """
    temperature = max(params.temperature, MIN_TEMPERATURE)
    with np.errstate(over="ignore"):  # huge gaps become -inf, whose weight is 0
        weights: Row = np.exp((logits - logits.max()) / np.float32(temperature))
    if 0 < params.top_k < len(logits):
        weights = _top_k(logits, weights, params.top_k)
    if params.top_p < 1.0:
        weights = _nucleus(logits, weights, params.top_p)
    if params.min_p > 0.0:
        weights[weights < np.float32(params.min_p)] = 0.0
    return weights


def _top_k(logits: Row, weights: Row, k: int) -> Row:
    """``weights`` of the ``k`` best tokens, 0 for the others."""
    best = top_ids(logits, k)
    kept = np.zeros_like(weights)
    kept[best] = weights[best]
    return kept


def _nucleus(logits: Row, weights: Row, top_p: float) -> Row:
    """``weights`` of the fewest best tokens that hold at least ``top_p`` of their mass, 0 for the others.

    A vocabulary need not be sorted for this: weights are counted into bins by their upper bits (which grow with the
    weight), bins are taken from the best one down, and only the one that reaches the mass is sorted. Weights below a
    floor need not even be counted: it is so low that all of them together hold less than half of 1 - top_p.
    """
    mass = float(weights.sum(dtype=np.float64))
    floor = np.float32(0.5 * (1.0 - top_p) * mass / len(weights))
    counted = weights[weights > floor]
    from_best = np.cumsum(np.bincount(_bins(counted).astype(np.int64), counted.astype(np.float64))[::-1])
    place = int(np.searchsorted(from_best, top_p * mass))
    before = float(from_best[place - 1]) if place else 0.0
    last_bin = len(from_best) - 1 - place
    bins = _bins(weights)
    ranked = rank_ids(logits, np.flatnonzero(bins == last_bin))
    running = np.cumsum(weights[ranked], dtype=np.float64)
    ranked = ranked[: int(np.searchsorted(running, top_p * mass - before)) + 1]
    kept = np.where(bins > last_bin, weights, np.float32(0.0))
    kept[ranked] = weights[ranked]
    return kept


def _bins(weights: Row) -> NDArray[np.int32]:
    """Sign (0), exponent and five bits of the fraction: 32 bins for each doubling of the weight."""
    return weights.view(np.int32) >> np.int32(18)


def draw(weights: Row, uniform: float) -> int:
    """The token at ``uniform`` (in [0, 1)) of the total weight, tokens laid end to end in the order of their ids."""
    starts = np.arange(0, len(weights), _BLOCK)
    blocks = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    target = uniform * float(blocks[-1])
    block = _place(blocks, target)
    start = block * _BLOCK
    before = float(blocks[block - 1]) if block else 0.0
    inside = np.cumsum(weights[start : start + _BLOCK], dtype=np.float64)
    return start + _place(inside, target - before)


def _place(running: NDArray[np.float64], target: float) -> int:
    """First place where the running sum exceeds ``target``: one with a weight above 0, as rounding may push the
    target to the sum of all, past the last such place."""
    last = int(np.searchsorted(running, running[-1]))
    return min(int(np.searchsorted(running, target, side="right")), last)
