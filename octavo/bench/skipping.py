"""``octavo bench skipping``: what it brings, and whom it costs, that small requests may pass one that does not fit.

Requests of the Azure conversation trace arrive at random times, in a KV memory in which the longest of them do not fit
beside many others. The scheduler and the allocator are those of the engine, the runner computes nothing; time is
counted in steps, so the figures are the same on every machine. Admission does not look ahead here (``octavo bench
admission``), so that passing is measured alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import compress
from pathlib import Path
from statistics import fmean, quantiles

import click

from octavo.bench.replay import Waits, one_step, poisson_arrivals
from octavo.bench.report import report
from octavo.bench.traces import Lengths, draw_lengths
from octavo.cli.table import json_option
from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import SchedulerConfig, SkipBounds
from octavo.sim.replay import Replay, Server

LARGE_SHARE = 0.1
"""Of the requests, those with the longest prompts: they count as large, the others as small."""

NEVER = 10**9

BOUNDS = {
    "nobody": SkipBounds(max_skips=0),
    "within the default bounds": SkipBounds(),
    "without bounds": SkipBounds(NEVER, NEVER),
}

COLUMNS = {
    "who_passes": "who may pass",
    "small_p50": "small: TTFT p50",
    "small_p90": "p90",
    "small_p99": "p99",
    "large_mean": "large: TTFT mean",
    "large_p90": "p90",
    "large_max": "max",
    "num_passed": "passed",
    "delay_mean": "later by, mean",
    "delay_max": "max",
    "most_skips": "most skips",
    "num_preemptions": "preemptions",
    "num_steps": "steps",
}


@dataclass(frozen=True, slots=True)
class Load:
    """``rate`` requests arrive a step on average; ``num_blocks`` blocks of 16 tokens hold them."""

    lengths: Sequence[Lengths]
    rate: float
    num_blocks: int
    max_num_batched_tokens: int
    seed: int

    def make_scheduler(self, bounds: SkipBounds) -> Scheduler:
        config = SchedulerConfig(
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.num_blocks * 16,
            head_skips=bounds,
            admission_quantile=0.0,
        )
        return Scheduler(config, KVCacheManager(CacheConfig(self.num_blocks)))


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a load. ``waits[i]``: steps from the arrival of request i to its first token; ``skips[i]``: how many
    passed it."""

    waits: list[int]
    skips: list[int]
    num_preemptions: int
    num_steps: int


def run(load: Load, bounds: SkipBounds) -> Run:
    """The whole load, to its last token."""
    scheduler, arrivals = load.make_scheduler(bounds), list(poisson_arrivals(load.lengths, load.rate, load.seed))
    replay, found = Replay([Server(scheduler, one_step)], arrivals), Waits(arrivals)
    for step in replay.steps():
        found.note(step)
    return Run(
        [int(found.waits[arrival.request]) for arrival in arrivals],
        [arrival.request.num_skips for arrival in arrivals],
        scheduler.counters.num_preemptions,
        int(replay.now),
    )


@dataclass(frozen=True, slots=True)
class SkippingFigures:
    """TTFT of small and of large requests, and how much later those that were passed (``num_passed``) had their first
    token than where nobody passes; in steps."""

    who_passes: str
    small_p50: float
    small_p90: float
    small_p99: float
    large_mean: float
    large_p90: float
    large_max: int
    num_passed: int
    delay_mean: float | None
    delay_max: int | None
    most_skips: int
    num_preemptions: int
    num_steps: int


def measure(load: Load) -> Iterator[SkippingFigures]:
    """The same load under each of ``BOUNDS``."""
    in_order: Run | None = None
    for who_passes, bounds in BOUNDS.items():
        found = run(load, bounds)
        in_order = in_order or found
        yield _figures(who_passes, load, found, in_order)


def _figures(who_passes: str, load: Load, found: Run, in_order: Run) -> SkippingFigures:
    prompts = [request.prompt for request in load.lengths]
    shortest_large = sorted(prompts)[int((1 - LARGE_SHARE) * len(prompts))]
    small = [wait for wait, prompt in zip(found.waits, prompts, strict=True) if prompt < shortest_large]
    large = [wait for wait, prompt in zip(found.waits, prompts, strict=True) if prompt >= shortest_large]
    delays = [wait - before for wait, before in zip(found.waits, in_order.waits, strict=True)]
    of_passed = list(compress(delays, found.skips))
    percentiles = quantiles(small, n=100)
    return SkippingFigures(
        who_passes=who_passes,
        small_p50=percentiles[49],
        small_p90=percentiles[89],
        small_p99=percentiles[98],
        large_mean=fmean(large),
        large_p90=quantiles(large, n=10)[8],
        large_max=max(large),
        num_passed=len(of_passed),
        delay_mean=fmean(of_passed) if of_passed else None,
        delay_max=max(of_passed, default=None),
        most_skips=max(found.skips),
        num_preemptions=found.num_preemptions,
        num_steps=found.num_steps,
    )


@click.command("skipping")
@click.option("--num-requests", type=click.IntRange(20), default=600, show_default=True, help="Of the Azure trace.")
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    default=0.02,
    show_default=True,
    help="Requests that arrive a step, on average.",
)
@click.option("--num-blocks", type=click.IntRange(1), default=500, show_default=True, help="Of 16 tokens.")
@click.option(
    "--max-num-batched-tokens", type=click.IntRange(256), default=512, show_default=True, help="Most tokens in a step."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Draws the requests and when they arrive.")
@json_option
def skipping_command(
    num_requests: int, rate: float, num_blocks: int, max_num_batched_tokens: int, seed: int, json_path: Path | None
) -> None:
    """Compare first come, first served with bounded skipping, and with skipping without bounds: in steps.

    Large are the requests with the longest prompts, a tenth of all. Passed are those that a later one passed; how much
    later they had their first token is against the run in which nobody passes.
    """
    load = Load(draw_lengths(num_requests, seed), rate, num_blocks, max_num_batched_tokens, seed)
    report("skipping", [asdict(figures) for figures in measure(load)], COLUMNS, json_path)
