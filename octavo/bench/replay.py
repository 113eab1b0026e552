"""Requests that arrive at random, played to the engine's own scheduler and allocator where time is counted in steps."""

import random
from collections.abc import Iterator, Sequence

from octavo.bench.paged import random_tokens
from octavo.bench.traces import Lengths
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import StepPlan
from octavo.sim.replay import Arrival, LandedStep


def poisson_arrivals(lengths: Sequence[Lengths], rate: float, seed: int) -> Iterator[Arrival]:
    """Requests of these lengths and the step before which each arrives, ``rate`` a step on average; the same each
    time."""
    source, time = random.Random(seed), 0.0
    for number, request in enumerate(lengths):
        time += source.expovariate(rate)
        prompt = random_tokens(request.prompt, source)
        yield Arrival(int(time), Request(str(number), prompt, SamplingParams(), max_tokens=request.output))


def one_step(_plan: StepPlan) -> float:
    """How long a step takes where time is counted in steps."""
    return 1


class Waits:
    """``waits``: from when each of these was due to its first token."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self._due = {arrival.request: arrival.due for arrival in arrivals}
        self.waits: dict[Request, float] = {}

    def note(self, step: LandedStep) -> None:
        for request in step.outcome.sampled:
            self.waits.setdefault(request, step.now - self._due[request])
