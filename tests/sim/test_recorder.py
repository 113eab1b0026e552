"""Figures against a record of every single token."""

import random
from collections import defaultdict
from itertools import pairwise
from statistics import fmean

import pytest

from octavo.core.kv_types import CacheConfig
from octavo.core.request import Request
from octavo.core.scheduler_types import SchedulerConfig
from octavo.sim.costs import LinearCosts
from octavo.sim.figures import figures, series
from octavo.sim.filled import num_filled_slots
from octavo.sim.gaps import LongestSteps
from octavo.sim.quantiles import Quantiles
from octavo.sim.replay import LandedStep
from octavo.sim.series import MAX_POINTS
from octavo.sim.simulation import QUEUE_FULL, TOO_LONG, ServerSettings, Simulation
from octavo.sim.traces.request import TracedRequest

COSTS = LinearCosts(base=0.02, per_decode=0.001, per_chunk_token=0.0003, per_decode_context=1e-6)


def load(count: int, seed: int, rate: float = 4.0, asked: int = 0) -> list[TracedRequest]:
    source, now, requests = random.Random(seed), 0.0, []
    for _ in range(count):
        now += source.expovariate(rate)
        output = source.choice([1, 2, source.randint(1, 120)])
        requests.append(TracedRequest(now, source.randint(1, 200), output, output + asked if asked else None))
    return requests


def settings(num_blocks: int, **more: int) -> ServerSettings:
    return ServerSettings(
        SchedulerConfig(max_num_seqs=more.pop("rows", 32), max_num_batched_tokens=64, max_model_len=num_blocks * 16),
        CacheConfig(num_blocks),
        **more,
    )


class Naive:
    """When each token of each request landed."""

    def __init__(self, requests: list[TracedRequest]) -> None:
        self.due = {str(number): request.seconds for number, request in enumerate(requests)}
        self.times: dict[Request, list[float]] = defaultdict(list)
        self.planned: dict[Request, float] = {}

    def note(self, step: LandedStep) -> None:
        for request in step.outcome.landed:
            self.planned.setdefault(request, step.start)
        for request in step.outcome.sampled:
            self.times[request].append(step.now)

    @property
    def samples(self) -> dict[str, list[float]]:
        each = [(self.due[request.request_id], times) for request, times in self.times.items()]
        return {
            "ttft": [times[0] - due for due, times in each],
            "itl": [later - sooner for _, times in each for sooner, later in pairwise(times)],
            "tpot": [(times[-1] - times[0]) / (len(times) - 1) for _, times in each if len(times) > 1],
            "e2el": [times[-1] - due for due, times in each],
            "queue": [planned - self.due[request.request_id] for request, planned in self.planned.items()],
        }

    def num_within(self, itl: float) -> int:
        return sum(max((b - a for a, b in pairwise(times)), default=0.0) <= itl for times in self.times.values())


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[max(1, -(-len(ordered) * percent // 100)).__int__() - 1]


@pytest.mark.parametrize("asked", [0, 30])
@pytest.mark.parametrize(("num_blocks", "seed"), [(400, 0), (40, 1), (30, 2), (24, 3)])
def test_latencies_are_those_of_every_token(num_blocks: int, seed: int, asked: int) -> None:
    requests = load(300, seed, asked=asked)
    naive = Naive(requests)
    simulation = Simulation(requests, settings(num_blocks), COSTS, {"itl": 60.0})
    recorder = simulation.run(naive.note)
    assert recorder.num_completed == 300
    assert recorder.num_open == 0
    assert recorder.num_preempted > 0 or num_blocks > 30, "the small memories are to be too small"
    assert [len(times) for times in naive.times.values()] == [
        requests[int(request.request_id)].output for request in naive.times
    ]
    for name, values in naive.samples.items():
        found = recorder.latencies[name]
        assert found.count == len(values), name
        assert found.mean == pytest.approx(fmean(values), rel=1e-9), name
        assert found.most == pytest.approx(max(values), rel=1e-9), name
        for percent in (10, 50, 90, 99):
            assert found.percentile(percent) == pytest.approx(percentile(values, percent), rel=1.1e-3, abs=2e-6), name
    assert recorder.num_good == naive.num_within(0.06)
    assert recorder.output_tokens == sum(request.output for request in requests)
    assert recorder.prompt_tokens == sum(request.prompt for request in requests)


def test_one_request_by_hand() -> None:
    """64 tokens of its prompt in the first step, 36 in the second, which draws; then two steps with a token each."""
    recorder = Simulation([TracedRequest(5.0, 100, 3)], settings(100), LinearCosts(1.0, 0.5, 0.01)).run()
    row = figures(recorder)
    assert row["ttft_mean"] == pytest.approx(1000 * (1.64 + 1.36))
    assert row["itl_p50"] == pytest.approx(1500, rel=1e-3)
    assert row["e2el_max"] == pytest.approx(1000 * 6.0)
    assert (row["seconds"], row["busy_share"]) == (pytest.approx(6.0), pytest.approx(1.0))
    assert (row["num_steps"], row["computed_tokens"]) == (4, 102)
    assert row["output_tokens_per_second"] == pytest.approx(0.5)
    assert row["goodput"] is None
    assert series(recorder)["running"][0] == 1


def test_the_scheduler_learns_what_steps_take_as_on_a_server() -> None:
    """A long prompt among answers takes half of their steps' time, and not whole ones of 0.6 s."""
    answers = [TracedRequest(0.0, 10, 300) for _ in range(8)]
    config = SchedulerConfig(max_model_len=6400)
    simulation = Simulation(
        [*answers, TracedRequest(4.0, 2000, 2)], ServerSettings(config, CacheConfig(400)), COSTS, {"itl": 80.0}
    )
    recorder = simulation.run()
    assert recorder.num_good == 9
    assert recorder.latencies["itl"].percentile(50) == pytest.approx(0.03, rel=0.1)


def test_what_can_never_run_and_what_finds_the_queue_full_is_refused() -> None:
    crowd = [TracedRequest(0.0, 10, 5) for _ in range(10)]
    too_long = TracedRequest(1.0, 10_000, 5)
    recorder = Simulation([*crowd, too_long], settings(100, rows=2, max_num_queued=3), COSTS).run()
    assert recorder.rejected == {QUEUE_FULL: 7, TOO_LONG: 1}
    assert recorder.num_completed == 3
    assert recorder.num_open == 0


def test_nothing_grows_with_the_length_of_a_run() -> None:
    """Points of the series, buckets of the percentiles, longest steps."""
    requests = (TracedRequest(3.0 * number, 20, 4) for number in range(3000))
    recorder = Simulation(requests, settings(100), COSTS).run()
    assert len(recorder.series.points) < 1024
    assert recorder.series.points[-1].seconds > 8000
    assert recorder.num_completed == 3000


def test_filled_slots_are_those_counted_one_by_one() -> None:
    """With prefixes that are shared, and requests that are preempted."""
    source = random.Random(5)
    requests = [
        TracedRequest(
            0.1 * number, source.randint(1, 100), source.randint(1, 60), None, source.choice([[1, 2], [3]]), 16
        )
        for number in range(200)
    ]
    simulation = Simulation(requests, settings(40), COSTS)
    looks: list[tuple[float, int]] = []

    def look(_step: LandedStep) -> None:
        simulation.recorder.series.look(0.0)
        looks.append((simulation.recorder.series.points[-1].filled, num_filled_slots(simulation.scheduler)))

    assert simulation.run(look).num_preempted > 0
    assert [filled for filled, _ in looks] == pytest.approx([num_filled / 640 for _, num_filled in looks])


def test_quantiles_of_many_values() -> None:
    source, found = random.Random(0), Quantiles()
    values = [source.lognormvariate(-3, 2) for _ in range(20_000)]
    for value in values:
        found.add(value)
    for percent in (0, 1, 25, 50, 99, 99.9, 100):
        assert found.percentile(percent) == pytest.approx(percentile(values, percent), rel=1.1e-3)
    assert Quantiles().percentile(50) is None
    assert Quantiles().mean is None


def test_the_longest_step_since_any() -> None:
    source, longest = random.Random(1), LongestSteps()
    steps = [source.random() for _ in range(200)]
    for number, seconds in enumerate(steps):
        longest.add(number, seconds)
        start = source.randint(0, number + 1)
        assert longest.since(start) == max(steps[start : number + 1], default=0.0)


def test_where_nobody_is_answered_no_time_has_gone() -> None:
    recorder = Simulation([TracedRequest(100.0, 500, 5)], settings(4), COSTS).run()
    row = figures(recorder)
    assert recorder.rejected == {TOO_LONG: 1}
    assert (row["seconds"], row["busy_share"], row["requests_per_second"]) == (0.0, None, None)


def test_means_are_over_the_time_in_which_nobody_comes_too() -> None:
    """Two requests of ten steps of a second, 90 seconds apart: one runs in 20 of 100 seconds."""
    second = LinearCosts(base=1.0, per_decode=0.0, per_chunk_token=0.0)
    coming = [TracedRequest(0.0, 8, 10), TracedRequest(90.0, 8, 10)]
    row = figures(Simulation(coming, settings(4), second).run())
    assert (row["seconds"], row["busy_share"]) == (100.0, 0.2)
    assert row["running_mean"] == pytest.approx(0.2, abs=0.1)
    assert row["running_max"] == 1


def test_a_day_without_requests_takes_no_memory() -> None:
    coming = [TracedRequest(0.0, 8, 10), TracedRequest(86_400.0, 8, 10)]
    recorder = Simulation(coming, settings(4), COSTS).run()
    assert len(recorder.series.points) <= MAX_POINTS
    assert recorder.series.points[-1].seconds > 86_000
