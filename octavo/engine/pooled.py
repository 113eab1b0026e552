"""The hidden states of a prompt, pooled to one vector, whatever chunks the prompt was computed in.

Floating-point sums depend on their order, and with it on the chunks. So the runner gives sums of whole units, which
add up to the same whatever the parts were.
"""

from collections.abc import Sequence
from operator import add

from octavo.core.request import Request
from octavo.core.step import UNITS_PER_ONE


class PooledPrompt:
    """What has landed so far of the vector of ``sequence``'s prompt."""

    def __init__(self, sequence: Request) -> None:
        self._num_prompt_tokens = sequence.num_prompt_tokens
        self._is_mean = sequence.pooling == "mean"
        self._sum: list[int] = []
        self._num_summed = 0

    def add(self, start: int, count: int, units: Sequence[int]) -> None:
        """A step has computed ``count`` positions from ``start`` on. One that begins anew does so at the start, since
        nothing is read from the cache for a mean."""
        if not self._is_mean or start == 0:
            self._sum, self._num_summed = list(units), 0
        else:
            assert start == self._num_summed, "positions of a mean are computed in order"
            self._sum = list(map(add, self._sum, units))
        self._num_summed += min(count, self._num_prompt_tokens - start)

    def vector(self) -> list[float]:
        """Once the whole prompt has landed."""
        divisor = UNITS_PER_ONE * (self._num_prompt_tokens if self._is_mean else 1)
        return [units / divisor for units in self._sum]
