"""What prompts may take of a step, spent chunk by chunk."""

from collections.abc import Callable
from math import inf

LEAST_SHARE = 0.1
"""Of its seconds: where less is left, no further chunk begins."""


class ChunkBudget:
    """Tokens and seconds for the chunks of a step's prompts, beside rows that wait for their next token.

    Part of it can be held back, for those that are planned last. The first chunk, and the first after what was held
    back is free again, has one token at least, whatever it costs: nobody is kept waiting by the clock alone.

    ``num_tokens`` and ``seconds``: for all chunks together; no seconds, no chunks. ``seconds_per_token``: of a prompt,
    at a position.
    """

    def __init__(self, num_tokens: int, seconds: float = inf, seconds_per_token: Callable[[int], float] | None = None):
        self._num_tokens = num_tokens if seconds > 0 else 0
        self._seconds = seconds
        self._seconds_per_token = seconds_per_token
        self._least_seconds = LEAST_SHARE * seconds if seconds < inf else 0.0
        self._held_tokens = 0
        self._held_seconds = 0.0
        self._is_first = True

    @property
    def is_open(self) -> bool:
        """May a chunk be planned?"""
        has_seconds = self._is_first or self._seconds - self._held_seconds > self._least_seconds
        return self._num_tokens > self._held_tokens and has_seconds

    def most_tokens(self, start: int, num_sharing: int = 1) -> int:
        """Tokens of a chunk that begins at position ``start``, if ``num_sharing`` prompts are to have as much: 1 at
        least while the budget is open, 0 when it is not."""
        if not self.is_open:
            return 0
        most = -(-(self._num_tokens - self._held_tokens) // num_sharing)
        if self._seconds_per_token is None or self._seconds == inf:
            return most
        seconds = (self._seconds - self._held_seconds) / num_sharing
        return max(1, int(min(most, seconds / self._seconds_per_token(start))))

    def spend(self, start: int, count: int) -> None:
        """A chunk of ``count`` tokens from position ``start`` on was planned."""
        self._num_tokens -= count
        self._is_first = False
        if self._seconds_per_token is not None:
            self._seconds -= count * self._seconds_per_token(start)

    def hold_back(self) -> None:
        """From now on half of what is left is not to be had, until ``set_free``."""
        self._held_tokens = self._num_tokens // 2
        self._held_seconds = self._seconds / 2 if self._seconds < inf else 0.0

    def set_free(self) -> None:
        self._held_tokens, self._held_seconds, self._is_first = 0, 0.0, True
