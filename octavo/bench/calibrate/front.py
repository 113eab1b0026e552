"""What the front of a running server costs, from short runs over HTTP: what they take beyond the engine's own steps."""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

from octavo.bench.calibrate.predict import predict
from octavo.bench.serve.exchange import Target
from octavo.bench.serve.figures import gaps, ttft
from octavo.bench.serve.load import Run, send_all
from octavo.bench.serve.workload import Planned
from octavo.core.errors import ConfigurationError
from octavo.sim.costs import Front, LinearCosts, StepWork
from octavo.sim.simulation import ServerSettings

PROMPT, ANSWER = 16, 24
BURSTS = (1, 1, 1, 4, 12, 24)
"""Requests that come at once; a single one, which says what the delay is, several times."""

SMALL_PROMPT, NUM_SMALL = 4, 48
"""Of a burst of requests that ask for one token each: there the front is what takes time."""

NUM_HALVINGS = 12


class FrontRuns:
    """``num_runs`` short runs against ``target``, whose engine has ``settings``, each played as often as one likes;
    medians count. ``vocab_size``: token ids are below it."""

    def __init__(self, target: Target, settings: ServerSettings, vocab_size: int, source: random.Random) -> None:
        self._target = target
        self._settings = settings
        self._vocab_size = vocab_size
        self._source = source
        most = settings.scheduler.max_num_seqs
        self._bursts = [size for size in BURSTS if size <= most]
        self._num_small = min(NUM_SMALL, most)
        self._first_tokens: list[float] = []
        self._intervals: defaultdict[int, list[float]] = defaultdict(list)
        self._small_seconds: list[float] = []

    @property
    def num_runs(self) -> int:
        return len(self._bursts) + 1

    def play(self, number: int) -> None:
        """One run.

        Raises:
            ConfigurationError: the server did not answer all requests.
        """
        if number == len(self._bursts):
            self._small_seconds.append(self._run(self._requests(self._num_small, SMALL_PROMPT, 1)).seconds)
            return
        size = self._bursts[number]
        run = self._run(self._requests(size, PROMPT, ANSWER))
        self._intervals[size] += [median(gaps(answer)) for answer in run.answers]
        if size == 1:
            self._first_tokens += [ttft(answer) for answer in run.answers]

    def front(self, costs: LinearCosts) -> Front:
        """What all runs so far say; every one has been played. ``costs``: of the engine's steps."""
        intervals = {size: median(found) for size, found in self._intervals.items()}
        per_step, per_token = step_extras(costs, intervals)
        front = Front(per_step=per_step, per_token=per_token)
        small = self._requests(self._num_small, SMALL_PROMPT, 1)
        per_request = self._per_request(small, replace(costs, front=front), median(self._small_seconds))
        lone = StepWork(num_chunks=1, chunk_tokens=PROMPT, chunk_context=PROMPT, chunk_pairs=PROMPT * (PROMPT + 1) // 2)
        delay = median(self._first_tokens) - costs.step_seconds(lone) - per_step - per_request
        return replace(front, per_request=per_request, delay=max(0.0, delay))

    def _per_request(self, small: Sequence[Planned], costs: LinearCosts, seconds: float) -> float:
        """With which the simulation of the small requests lasts as long as they did; 0 if it does so without."""
        low, high = 0.0, seconds / len(small)
        for _ in range(NUM_HALVINGS):
            middle = (low + high) / 2
            front = replace(costs.front, per_request=middle)
            found = predict(small, replace(costs, front=front), self._settings)["seconds"]
            assert isinstance(found, float)
            low, high = (middle, high) if found < seconds else (low, middle)
        return low

    def _requests(self, count: int, prompt: int, answer: int) -> list[Planned]:
        """All at once, with new tokens."""
        vocabulary = range(self._vocab_size)
        return [Planned(0.0, self._source.choices(vocabulary, k=prompt), answer) for _ in range(count)]

    def _run(self, plan: Sequence[Planned]) -> Run:
        run = send_all(self._target, plan)
        failed = next((answer for answer in run.answers if answer.error is not None), None)
        if failed is not None:
            raise ConfigurationError(f"the server did not answer ({failed.error}): {failed.message.strip()[:300]}")
        return run


def step_extras(costs: LinearCosts, intervals: Mapping[int, float]) -> tuple[float, float]:
    """Seconds a step, and a token, by which the time between tokens of so many answers at once exceeds the engine's
    step: a straight line, and neither below 0."""
    extras = {
        size: seconds - costs.step_seconds(StepWork(num_decodes=size, decode_context=size * (PROMPT + ANSWER // 2)))
        for size, seconds in intervals.items()
    }
    mean, of_extras = fmean(extras), fmean(extras.values())
    spread = sum((size - mean) ** 2 for size in extras)
    slope = sum((size - mean) * (extra - of_extras) for size, extra in extras.items()) / spread if spread else 0.0
    per_token = max(0.0, slope)
    return max(0.0, of_extras - per_token * mean) if per_token else max(0.0, of_extras), per_token
