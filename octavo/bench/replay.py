"""Requests that arrive over time, played to the engine's own scheduler and allocator over a runner that computes
nothing. A step takes as long as the caller says; nothing reads a clock, so figures are the same on every machine."""

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress

from octavo.bench.paged import add_request, random_tokens
from octavo.bench.traces import Lengths
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import StepOutcome, StopCheck
from octavo.core.step import StepPlan, StepResult


def poisson_arrivals(lengths: Sequence[Lengths], rate: float, seed: int) -> Iterator[tuple[int, Request]]:
    """Requests of these lengths and the step before which each arrives, ``rate`` a step on average; the same each
    time."""
    source, time = random.Random(seed), 0.0
    for number, request in enumerate(lengths):
        time += source.expovariate(rate)
        prompt = random_tokens(request.prompt, source)
        yield int(time), Request(str(number), prompt, SamplingParams(), max_tokens=request.output)


def one_step(_plan: StepPlan) -> float:
    """How long a step takes where time is counted in steps."""
    return 1


class Replay:
    """``requests`` arrive when they are due, in that order. ``waits``: from then to the first token; ``now``: the end
    of the last step. Each row draws its own id."""

    def __init__(self, scheduler: Scheduler, arrivals: Iterable[tuple[float, Request]]) -> None:
        self.scheduler = scheduler
        self._coming = deque(arrivals)
        self.requests = [request for _, request in self._coming]
        self.waits: dict[Request, float] = {}
        self.now: float = 0
        self._due = {request: due for due, request in self._coming}

    def steps(
        self,
        lasts: Callable[[StepPlan], float] = one_step,
        check_stops: StopCheck | None = None,
        tell_time: Callable[[float], None] = lambda _now: None,
    ) -> Iterator[StepOutcome]:
        """What each step brought, to the last token. ``lasts``: asked when a step has been planned; ``tell_time``: told
        the time before requests arrive; ``check_stops``: as in ``Scheduler.update``."""
        while self._coming or self.scheduler.has_work:
            if not self.scheduler.has_work:
                self.now = max(self.now, self._coming[0][0])
            tell_time(self.now)
            while self._coming and self._coming[0][0] <= self.now:
                add_request(self.scheduler, self._coming.popleft()[1])
            plan = self.scheduler.schedule()
            assert plan is not None, "there is work"
            self.now += lasts(plan)
            result = StepResult(plan.step_id, tuple(compress(plan.row_ids, plan.samples)))
            outcome = self.scheduler.update(result, check_stops)
            for request in outcome.sampled:
                self.waits.setdefault(request, self.now - self._due[request])
            yield outcome
