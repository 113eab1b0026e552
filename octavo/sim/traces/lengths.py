"""Requests of which only the lengths are known: when they come is drawn."""

import random
from collections.abc import Iterable, Iterator

from octavo.sim.traces.request import TracedRequest

DEFAULT_RATE = 1.0


def poisson(lengths: Iterable[tuple[int, int]], rate: float, seed: int) -> Iterator[TracedRequest]:
    """Requests of these lengths of prompts and answers, in this order, ``rate`` a second on average; the same each
    time."""
    source, seconds = random.Random(seed), 0.0
    for prompt, output in lengths:
        seconds += source.expovariate(rate)
        yield TracedRequest(seconds, prompt, output)
