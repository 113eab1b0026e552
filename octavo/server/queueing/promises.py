"""Who was told to come back later, and when: so that not all of them are told the same."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple


class Share(NamedTuple):
    """What waits, or would: requests (each choice is one, as in the gauges) and the tokens of their prompts."""

    num_requests: int
    num_tokens: int


NOTHING = Share(0, 0)


class Promises:
    """Shares by the second at which they are to come back; at most ``longest_seconds`` of them. ``clock``: seconds that
    only grow. Nobody is known again: whoever comes sooner, or never, counts until the time is over."""

    def __init__(self, longest_seconds: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._second = int(clock())
        self._shares = deque([NOTHING] * longest_seconds)
        """By the second at which they come back, from the next one on."""

    def note(self, share: Share, seconds: int) -> None:
        """``share`` is told to come back after so many seconds, at least 1."""
        self._advance()
        before = self._shares[seconds - 1]
        self._shares[seconds - 1] = Share(
            before.num_requests + share.num_requests, before.num_tokens + share.num_tokens
        )

    def ahead(self) -> Share:
        """All that is still to come back."""
        self._advance()
        return Share(sum(each.num_requests for each in self._shares), sum(each.num_tokens for each in self._shares))

    def _advance(self) -> None:
        second = int(self._clock())
        for _ in range(min(second - self._second, len(self._shares))):
            self._shares.popleft()
            self._shares.append(NOTHING)
        self._second = second
