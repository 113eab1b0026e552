"""One system, one workload: what is in memory, and how long answers take."""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import NamedTuple

from octavo.core.request import Request
from octavo.core.step import StepPlan
from octavo.sim.baselines.memory import Memory
from octavo.sim.costs import CostModel, work_of
from octavo.sim.paper.systems import Occupancy, System
from octavo.sim.replay import Arrival, Replay, Server
from octavo.sim.requests import make_request
from octavo.sim.traces.request import TracedRequest


@dataclass(slots=True)
class TimeMean:
    """Of a value that holds for some seconds each time."""

    total: float = 0.0
    seconds: float = 0.0

    def add(self, value: float, seconds: float) -> None:
        self.total += value * seconds
        self.seconds += seconds

    @property
    def value(self) -> float | None:
        return self.total / self.seconds if self.seconds else None


class MemoryWatch:
    """Means over time of what is in memory. ``running``: sequences, over all steps; ``filled``, ``held``: shares of all
    slots, over the steps in which requests wait; ``filled_of_held``: over all steps."""

    def __init__(self, occupancy: Occupancy, memory: Memory) -> None:
        self._occupancy = occupancy
        self._num_slots = memory.num_slots
        self.running, self.filled, self.held = TimeMean(), TimeMean(), TimeMean()
        self.filled_of_held = TimeMean()

    def look(self, seconds: float) -> None:
        """A step that takes so long was planned."""
        at = self._occupancy
        filled, held = at.filled_slots, at.held_slots
        self.running.add(at.num_running, seconds)
        if held:
            self.filled_of_held.add(filled / held, seconds)
        if at.num_waiting:
            self.filled.add(filled / self._num_slots, seconds)
            self.held.add(held / self._num_slots, seconds)


class Experiment:
    """``watch``: see MemoryWatch; it is not there unless it is asked for, since to look costs more than a step."""

    def __init__(self, system: System, memory: Memory, costs: CostModel, *, watches: bool = False) -> None:
        scheduler, self.occupancy = system.make(memory)
        self.watch = MemoryWatch(self.occupancy, memory) if watches else None
        self.sum_latencies = 0.0
        self.num_ended = 0
        self.num_computed = 0
        self._costs = costs
        self._server = Server(scheduler, self._step_seconds)
        self._due: dict[Request, float] = {}

    def run(self, requests: Iterable[TracedRequest], most_latencies: float = math.inf) -> None:
        """To the last token, or until the latencies of those that ended add up to more than ``most_latencies``.

        Raises:
            InvalidRequestError: the memory can never hold one of them.
        """
        for step in Replay([self._server], self._arrivals(requests)).steps():
            for request in step.outcome.finished:
                self.sum_latencies += (step.now - self._due.pop(request)) / request.num_output_tokens
                self.num_ended += 1
            self.num_computed += step.plan.num_tokens
            if self.sum_latencies > most_latencies:
                break

    @property
    def normalized_latency(self) -> float | None:
        """Mean over requests of the seconds from arrival to last token, over tokens of the answer: what the paper
        compares."""
        return self.sum_latencies / self.num_ended if self.num_ended else None

    def _arrivals(self, requests: Iterable[TracedRequest]) -> Iterator[Arrival]:
        for number, traced in enumerate(requests):
            request = make_request(traced, number)
            self._due[request] = traced.seconds
            yield Arrival(traced.seconds, request)

    def _step_seconds(self, plan: StepPlan) -> float:
        seconds = self._costs.step_seconds(work_of(plan))
        if self.watch is not None:
            self.watch.look(seconds)
        return seconds


def poisson(lengths: Sequence[TracedRequest], rate: float, seconds: float, seed: int = 0) -> Iterator[TracedRequest]:
    """These requests, over and over, ``rate`` of them a second on average, for so long."""
    source, now = random.Random(seed), 0.0
    for request in cycle(lengths):
        now += source.expovariate(rate)
        if now > seconds:
            return
        yield request._replace(seconds=now)


class Load(NamedTuple):
    """Requests of these ``lengths``, whose times do not count. ``seconds``: for how long they come, where they come
    over time: long enough, or a queue that grows for ever looks like one that is short."""

    lengths: Sequence[TracedRequest]
    seconds: float


def sustained_rate(system: System, memory: Memory, costs: CostModel, load: Load, latency: float) -> float:
    """The highest rate, within PRECISION of it, at which the mean normalized latency keeps within ``latency`` seconds a
    token. Found by bisection; 0 where there is none."""

    def keeps(rate: float) -> bool:
        most = latency * sum(1 for _ in poisson(load.lengths, rate, load.seconds))
        experiment = Experiment(system, memory, costs)
        experiment.run(poisson(load.lengths, rate, load.seconds), most)
        return experiment.num_ended > 0 and experiment.sum_latencies <= most

    low, high = 0.0, 1.0
    while high < MAX_RATE and keeps(high):
        low, high = high, 2 * high
    while high - low > PRECISION * high and high > MIN_RATE:
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


PRECISION = 0.05

MIN_RATE, MAX_RATE = 1e-3, 1024
"""Requests a second; less is nothing, and more is not looked for."""
