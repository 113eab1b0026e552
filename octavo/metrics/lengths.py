"""How long prompts and answers are, of late: the tail is what drains the pool."""

from collections import deque
from collections.abc import Callable
from math import ceil, nan

WINDOW_SECONDS = 1800.0
WINDOW_COUNT = 10_000
"""At most so many, the latest, of what has come in so many seconds: memory is bounded whatever comes."""

QUANTILES = (0.5, 0.9, 0.99, 0.999)


class RecentLengths:
    """``clock``: seconds that only grow."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque(maxlen=WINDOW_COUNT)

    def note(self, num_tokens: int) -> None:
        self._seen.append((self._clock(), num_tokens))

    def quantiles(self) -> dict[float, float]:
        """By quantile the smallest length that this share of all does not exceed; NaN where nothing has come."""
        oldest = self._clock() - WINDOW_SECONDS
        while self._seen and self._seen[0][0] < oldest:
            self._seen.popleft()
        lengths = sorted(num_tokens for _, num_tokens in self._seen)
        return {each: lengths[ceil(each * len(lengths)) - 1] if lengths else nan for each in QUANTILES}
