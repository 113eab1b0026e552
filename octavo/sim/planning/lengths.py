"""What is known of the requests that are to come."""

import math
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise

from octavo.sim.traces.request import TracedRequest

QUANTILES = (0.5, 0.9, 0.99)
"""Of lengths that are given by three numbers."""


def quantile(values: Sequence[int], share: float) -> int:
    """The smallest of these that at least ``share`` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def draw_requests(prompts: Sequence[int], outputs: Sequence[int], count: int, seed: int = 0) -> list[TracedRequest]:
    """Requests whose prompts and outputs have these values at ``QUANTILES``, each by itself: lengths lie on straight
    lines between them on a logarithmic scale, from half of the median to what the last line comes to at 1."""
    source = random.Random(seed)
    return [
        TracedRequest(0.0, _length(prompts, source.random()), _length(outputs, source.random())) for _ in range(count)
    ]


def _length(values: Sequence[int], share: float) -> int:
    points = list(_points(values))
    for (low, least), (high, most) in pairwise(points):
        if share <= high:
            part = (share - low) / (high - low)
            return max(1, round(least * math.pow(most / least, part)))
    return max(1, round(points[-1][1]))


def _points(values: Sequence[int]) -> Iterator[tuple[float, float]]:
    yield 0.0, values[0] / 2
    yield from zip(QUANTILES, values, strict=True)
    slope = math.log(values[2] / values[1]) / (QUANTILES[2] - QUANTILES[1])
    yield 1.0, values[2] * math.exp(slope * (1 - QUANTILES[2]))
