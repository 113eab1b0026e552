"""``octavo bench admission``: how rarely requests are preempted where admission looks ahead, and what that costs.

Requests of a trace arrive as they did, at another speed, in a KV memory that is what they wait for. The scheduler and
the allocator are those of the engine and the runner computes nothing; a step takes a time that follows from its tokens,
so the figures are the same on every machine.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import numpy as np

from octavo.bench.paged import random_tokens
from octavo.bench.replay import Waits
from octavo.bench.report import report
from octavo.bench.traces import AZURE_TRACES, TracedRequest, azure_trace
from octavo.cli.table import json_option
from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import ADMISSION_QUANTILE, SchedulerConfig
from octavo.core.step import StepPlan, StepResult
from octavo.sim.ends import Ends
from octavo.sim.replay import Arrival, Replay, Server
from octavo.sim.runner import draw_row_ids

QUANTILES = (0.0, 0.5, 0.7, 0.9, 0.95, 0.99, ADMISSION_QUANTILE)
"""0: admission does not look ahead."""

NUM_BLOCKS = {"azure": 3000, "azure-code": 2000}
"""So few that requests wait for memory, not for their prompts to be computed."""

MAX_TOKENS = 4096
"""What every request asks for, as much as the memory allows: it says nothing of how long its answer will be."""

COLUMNS = {
    "trace": "trace",
    "quantile": "quantile",
    "capacity": "sustainable",
    "rate": "load",
    "preempted_percent": "preempted, %",
    "num_preemptions": "preemptions",
    "filled_percent": "filled while waiting, %",
    "waiting_percent": "time with a queue, %",
    "resident": "running",
    "ttft_p50": "TTFT p50",
    "ttft_p90": "p90",
    "ttft_p99": "p99",
}


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step takes ``base_rows`` and one for each token that it computes, in rows as in ``core/step_costs.py``;
    ``rows_per_second`` of them take a second."""

    base_rows: float
    rows_per_second: float

    def seconds(self, num_tokens: int) -> float:
        return (self.base_rows + num_tokens) / self.rows_per_second


@dataclass(frozen=True)
class Load:
    """Requests of a trace in a row, and what holds them."""

    trace: Sequence[TracedRequest]
    num_blocks: int
    max_num_batched_tokens: int
    step_time: StepTime
    seed: int

    @cached_property
    def prompts(self) -> list[list[int]]:
        source = random.Random(self.seed)
        return [random_tokens(request.lengths.prompt, source) for request in self.trace]

    def arrivals(self, rate: float) -> Iterator[Arrival]:
        """Requests and the second in which each arrives; all at once where ``rate`` is infinite."""
        first, last = self.trace[0].seconds, self.trace[-1].seconds
        speed = 0.0 if math.isinf(rate) else (len(self.trace) - 1) / rate / (last - first)
        for number, (traced, prompt) in enumerate(zip(self.trace, self.prompts, strict=True)):
            max_tokens = min(MAX_TOKENS, self.num_blocks * 16 - len(prompt))
            request = Request(str(number), prompt, SamplingParams(), max_tokens=max_tokens)
            yield Arrival(speed * (traced.seconds - first), request)

    def make_scheduler(self, quantile: float) -> Scheduler:
        config = SchedulerConfig(
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.num_blocks * 16,
            admission_quantile=quantile,
        )
        return Scheduler(config, KVCacheManager(CacheConfig(self.num_blocks)))


@dataclass(slots=True)
class Run:
    """What came of a load. ``ttft[i]``: seconds from the arrival of request i to its first token; ``ends``: when each
    ended, in the order of their ends. ``filled``: mean share of the slots, over the time in which requests wait."""

    ttft: dict[str, float] = field(default_factory=dict)
    ends: list[float] = field(default_factory=list)
    num_preempted: int = 0
    num_preemptions: int = 0
    waiting_seconds: float = 0.0
    filled_seconds: float = 0.0
    resident_seconds: float = 0.0

    @property
    def capacity(self) -> float:
        """Requests a second, where all are there from the start: over the middle of the run, without its beginning, in
        which memory fills, and its end, in which it empties."""
        first, last = len(self.ends) // 10, len(self.ends) * 9 // 10
        return (last - first) / (self.ends[last] - self.ends[first])


def run(load: Load, quantile: float, rate: float) -> Run:
    """The whole load, to its last token."""
    scheduler, found, ends = load.make_scheduler(quantile), Run(), Ends()
    arrivals = list(load.arrivals(rate))
    for arrival, traced in zip(arrivals, load.trace, strict=True):
        ends.add(arrival.request, traced.lengths.output)

    def draw(plan: StepPlan) -> StepResult:
        ends.begin_landing()
        return draw_row_ids(plan)

    def step_seconds(plan: StepPlan) -> float:
        seconds = load.step_time.seconds(plan.num_tokens)
        if scheduler.num_waiting:
            found.waiting_seconds += seconds
            found.filled_seconds += seconds * sum(request.num_computed_tokens for request in scheduler.running)
            found.resident_seconds += seconds * len(scheduler.running)
        return seconds

    server, times = Server(scheduler, step_seconds, draw=draw, check_stop=ends.check), Waits(arrivals)
    for step in Replay([server], arrivals).steps():
        times.note(step)
        found.ends += [step.now] * len(step.outcome.finished)
    found.ttft = {request.request_id: wait for request, wait in times.waits.items()}
    found.num_preempted = sum(arrival.request.num_preemptions > 0 for arrival in arrivals)
    found.num_preemptions = scheduler.counters.num_preemptions
    return found


def measure(name: str, load: Load, quantiles: Sequence[float], share: float) -> Iterator[dict[str, object]]:
    """A row for each quantile, all at ``share`` of the most that any of them sustains."""
    capacities = {quantile: run(load, quantile, math.inf).capacity for quantile in quantiles}
    rate = share * max(capacities.values())
    for quantile in quantiles:
        found = run(load, quantile, rate)
        waits = list(found.ttft.values())
        waited = found.waiting_seconds
        yield {
            "trace": name,
            "quantile": quantile or "off",
            "capacity": capacities[quantile],
            "rate": rate,
            "preempted_percent": 100 * found.num_preempted / len(load.trace),
            "num_preemptions": found.num_preemptions,
            "filled_percent": 100 * found.filled_seconds / waited / load.num_blocks / 16 if waited else None,
            "waiting_percent": 100 * waited / found.ends[-1],
            "resident": found.resident_seconds / waited if waited else None,
            **{f"ttft_p{percent}": float(np.percentile(waits, percent)) for percent in (50, 90, 99)},
        }


@click.command("admission")
@click.option("--traces", "names", type=click.Choice(tuple(AZURE_TRACES)), multiple=True, default=tuple(AZURE_TRACES))
@click.option("--num-requests", type=click.IntRange(20), default=2000, show_default=True, help="Of each trace.")
@click.option("--num-blocks", type=click.IntRange(1), help="Of 16 tokens.  [default: 3000, azure-code 2000]")
@click.option(
    "--max-num-batched-tokens", type=click.IntRange(256), default=4096, show_default=True, help="Most tokens in a step."
)
@click.option(
    "--base-rows",
    type=click.FloatRange(0),
    default=240.0,
    show_default=True,
    help="What a step costs beside its tokens, in tokens: about 240 on an accelerator, 2.4 on two cores.",
)
@click.option(
    "--rows-per-second", type=click.FloatRange(0, min_open=True), default=10_000.0, show_default=True, help="Tokens."
)
@click.option(
    "--quantiles",
    type=click.FloatRange(0, 1, max_open=True),
    multiple=True,
    default=QUANTILES,
    show_default=True,
    help="To compare; 0 looks ahead at nothing.",
)
@click.option(
    "--load", "share", type=click.FloatRange(0, min_open=True), default=0.9, show_default=True, help="Of the highest."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Draws the prompts' tokens.")
@json_option
def admission_command(
    names: Sequence[str],
    quantiles: Sequence[float],
    share: float,
    json_path: Path | None,
    base_rows: float,
    rows_per_second: float,
    **shape: Any,
) -> None:
    """Compare how far admission looks ahead: preemptions, filled memory and waiting times, without a model.

    The load is a share of the highest that any of them sustains: what it gets done a second where all requests are
    there from the start. Times are seconds, a step's from --base-rows and --rows-per-second.
    """
    step_time = StepTime(base_rows, rows_per_second)
    num_requests, num_blocks = shape.pop("num_requests"), shape.pop("num_blocks")
    rows: list[dict[str, object]] = []
    for name in names:
        blocks = num_blocks or NUM_BLOCKS[name]
        load = Load(azure_trace(name)[:num_requests], blocks, step_time=step_time, **shape)
        rows += measure(name, load, quantiles, share)
    report("admission", rows, COLUMNS, json_path)
