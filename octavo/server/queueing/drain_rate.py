"""How fast the queue moves: what has lately left it by being started."""

from collections.abc import Callable
from math import exp

MEASURED_SECONDS = 1.0
"""Of waiting, before a wait is predicted: requests that come to idle rows leave at once, which tells nothing."""

MEMORY_SECONDS = 30.0
"""What is this long ago counts 1/e of what is now."""


class DrainRate:
    """Requests and prompt tokens started a second of the time in which something waited, recent seconds counting most.
    Time in which nothing waits tells nothing: then the rate would be that of the arrivals. ``clock``: seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._now = clock()
        self._is_waiting = False
        self._seconds = 0.0
        self._requests = 0.0
        self._tokens = 0.0

    def note_started(self, num_requests: int, num_tokens: int) -> None:
        self._advance()
        self._requests += num_requests
        self._tokens += num_tokens

    def note_waiting(self, is_waiting: bool) -> None:
        """Does anything wait from now on?"""
        self._advance()
        self._is_waiting = is_waiting

    def seconds_for_requests(self, count: int) -> float | None:
        """How long ``count`` requests take to leave; None: nothing has ever left."""
        self._advance()
        return count * self._seconds / self._requests if self._requests else None

    def seconds_for_tokens(self, count: int) -> float | None:
        """The same of prompt tokens."""
        self._advance()
        return count * self._seconds / self._tokens if self._tokens else None

    def predicted_wait(self, num_tokens: int) -> float | None:
        """Seconds until so many prompt tokens have left; None: too little has been seen to tell."""
        seconds = self.seconds_for_tokens(num_tokens)
        return seconds if self._seconds >= MEASURED_SECONDS else None

    def _advance(self) -> None:
        now = self._clock()
        rest = exp((self._now - now) / MEMORY_SECONDS)
        self._now = now
        self._requests *= rest
        self._tokens *= rest
        self._seconds = self._seconds * rest + (MEMORY_SECONDS * (1 - rest) if self._is_waiting else 0.0)
