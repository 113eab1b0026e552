"""Percentiles of any number of values in bounded memory."""

import math
from collections import Counter

GROWTH = 1.002
"""Of one bucket over the one before: what a percentile says is within a thousandth of a value that is there."""

LEAST = 1e-6
"""What is not above it counts as it."""


class Quantiles:
    """Counts in buckets that widen with the value (as in "DDSketch", Masson et al., VLDB 2019), so some 14,000 of them
    hold everything between a microsecond and eleven days. The mean and the largest value are exact."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._scale = 1 / math.log(GROWTH)
        self._sum = 0.0
        self.count = 0
        self.most = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """``count`` times ``value``, which is not below 0."""
        self._counts[math.ceil(math.log(max(value, LEAST)) * self._scale)] += count
        self._sum += value * count
        self.count += count
        self.most = max(self.most, value)

    @property
    def mean(self) -> float | None:
        return self._sum / self.count if self.count else None

    def percentile(self, percent: float) -> float | None:
        """The smallest value that at least ``percent`` of them do not exceed; None where there are none."""
        if not self.count:
            return None
        rank, seen = max(1, math.ceil(self.count * percent / 100)), 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= rank:
                return min(self.most, math.exp((bucket - 0.5) / self._scale))
        return self.most
