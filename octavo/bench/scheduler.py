"""``octavo bench scheduler``: steps a second of scheduler and allocator alone, over a runner that computes nothing.

Requests end and are replaced all the time, the prefix cache is on and blocks are published, so admissions, endings
and block boundaries are all part of the figure.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path

import click

from octavo.bench.report import report
from octavo.cli.table import json_option
from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import SchedulerConfig
from octavo.core.step import StepResult

COLUMNS = {
    "num_running": "running",
    "num_steps": "steps",
    "steps_per_second": "steps/s",
    "steps_per_cpu_second": "steps/s of CPU time",
    "microseconds_per_step": "us/step",
    "tokens_per_second": "tokens/s",
    "mean_rows": "rows/step",
}
BLOCKS_PER_REQUEST = 64
"""Enough for 1,024 tokens: no request waits for memory, none is preempted."""


@dataclass(frozen=True, slots=True)
class SchedulerFigures:
    """``steps_per_cpu_second`` leaves out the time in which the system ran somebody else on this core."""

    num_running: int
    num_steps: int
    steps_per_second: float
    steps_per_cpu_second: float
    microseconds_per_step: float
    tokens_per_second: float
    mean_rows: float


@dataclass(slots=True)
class Load:
    """Prompts of 65 to 512 tokens that share a head of 64, outputs of 50 to 400, without end."""

    scheduler: Scheduler
    source: random.Random = field(default_factory=lambda: random.Random(0))
    numbers: "count[int]" = field(default_factory=count)

    def add(self, num_requests: int) -> None:
        for number in (next(self.numbers) for _ in range(num_requests)):
            prompt = [*range(64), *self.source.choices(range(50_000), k=self.source.randint(1, 448))]
            max_tokens = self.source.randint(50, 400)
            self.scheduler.add(Request(str(number), prompt, SamplingParams(), max_tokens=max_tokens))

    def start(self, num_running: int) -> None:
        """Run until nearly as many are running."""
        self.add(num_running)
        while len(self.scheduler.running) < num_running * 0.95:
            run_step(self.scheduler)
            self.add(max(0, 4 - self.scheduler.num_waiting))


def run_step(scheduler: Scheduler) -> tuple[int, int]:
    """One step with made-up tokens; returns how many were drawn, and how many requests ended."""
    plan = scheduler.schedule()
    assert plan is not None, "there is work"
    num_drawn = plan.samples.count(True)
    outcome = scheduler.update(StepResult(plan.step_id, (7,) * num_drawn))
    return num_drawn, len(outcome.finished)


def measure(num_running: int, num_steps: int) -> SchedulerFigures:
    """Times ``num_steps`` steps with about ``num_running`` requests, one for each that ended added between steps."""
    kv = KVCacheManager(CacheConfig(num_blocks=num_running * BLOCKS_PER_REQUEST))
    budget = max(2048, num_running)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=num_running, max_num_batched_tokens=budget), kv)
    load = Load(scheduler)
    load.start(num_running)
    seconds = cpu_seconds = 0.0
    num_tokens = 0
    for _ in range(num_steps):
        cpu_start, start = time.process_time(), time.perf_counter()
        num_drawn, num_ended = run_step(scheduler)
        seconds += time.perf_counter() - start
        cpu_seconds += time.process_time() - cpu_start
        num_tokens += num_drawn
        load.add(num_ended)
    return SchedulerFigures(
        num_running=num_running,
        num_steps=num_steps,
        steps_per_second=num_steps / seconds,
        steps_per_cpu_second=num_steps / cpu_seconds,
        microseconds_per_step=1e6 * seconds / num_steps,
        tokens_per_second=num_tokens / seconds,
        mean_rows=num_tokens / num_steps,
    )


@click.command("scheduler")
@click.option(
    "--num-running", type=click.IntRange(1), multiple=True, default=(256,), show_default=True, help="Requests at once."
)
@click.option("--num-steps", type=click.IntRange(1), default=3000, show_default=True, help="Steps timed.")
@json_option
def scheduler_command(num_running: Sequence[int], num_steps: int, json_path: Path | None) -> None:
    """Time the scheduler and the allocator alone, on one core, with a runner that computes nothing."""
    report("scheduler", [asdict(measure(running, num_steps)) for running in num_running], COLUMNS, json_path)
