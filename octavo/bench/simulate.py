"""``octavo bench simulate``: how fast the simulator replays traffic, on one core, and that its memory does not grow."""

import random
import resource
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from octavo.bench.report import report
from octavo.bench.traces import azure_path
from octavo.cli.table import json_option
from octavo.core.kv_types import CacheConfig
from octavo.core.scheduler_types import SchedulerConfig
from octavo.sim.costs import LinearCosts
from octavo.sim.simulation import ServerSettings, Simulation
from octavo.sim.traces.request import TracedRequest
from octavo.sim.traces.source import Pace, TraceSource

COLUMNS = {
    "load": "load",
    "num_requests": "requests",
    "num_steps": "steps",
    "mean_rows": "rows/step",
    "output_tokens": "new tokens",
    "seconds": "seconds",
    "cpu_seconds": "of CPU time",
    "tokens_per_cpu_second": "new tokens/s of CPU time",
    "steps_per_cpu_second": "steps/s of it",
    "simulated_seconds": "seconds simulated",
    "grown_mib": "memory grown, MiB",
}

BLOCKS_PER_REQUEST = 64
"""Enough for 1,024 tokens: no request waits for memory, none is preempted."""

COSTS = LinearCosts(base=0.01, per_decode=0.00005, per_chunk_token=0.0001)
AZURE_NUM_BLOCKS = 30_000
AZURE_MAX_MODEL_LEN = 16_384


@dataclass(frozen=True, slots=True)
class SimulatorFigures:
    """``grown_mib``: of the process, from the first quarter of the requests on."""

    load: str
    num_requests: int
    num_steps: int
    mean_rows: float
    output_tokens: int
    seconds: float
    cpu_seconds: float
    tokens_per_cpu_second: float
    steps_per_cpu_second: float
    simulated_seconds: float
    grown_mib: float


def crowd(num_requests: int, seed: int = 0) -> Iterator[TracedRequest]:
    """All there from the start, with the lengths of ``octavo bench scheduler``: prompts of 65 to 512 tokens, answers of
    50 to 400. Of their prompts only lengths are known, as of most traces."""
    source = random.Random(seed)
    for _ in range(num_requests):
        yield TracedRequest(0.0, source.randint(65, 512), source.randint(50, 400))


def arriving(requests: Iterator[TracedRequest], num_running: int) -> Iterator[TracedRequest]:
    """The same so spread over time that nearly ``num_running`` run and few wait: each comes when its place is free."""
    mean_output = 225
    pause = (COSTS.base + num_running * (COSTS.per_decode + COSTS.per_chunk_token * 288 / mean_output)) * mean_output
    for number, request in enumerate(requests):
        yield request._replace(seconds=max(0, number - num_running) * pause / num_running)


class Memory:
    """Of this process, from when a quarter of the requests have come."""

    def __init__(self, num_requests: int) -> None:
        self._quarter = num_requests // 4
        self._before = 0

    def watch(self, requests: Iterator[TracedRequest]) -> Iterator[TracedRequest]:
        for number, request in enumerate(requests):
            if number == self._quarter:
                self._before = resident_bytes()
            yield request

    @property
    def grown_mib(self) -> float:
        return (resident_bytes() - self._before) / 2**20


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def measure(
    name: str, requests: Iterator[TracedRequest], num_requests: int, settings: ServerSettings
) -> SimulatorFigures:
    """The whole load, timed."""
    memory = Memory(num_requests)
    simulation = Simulation(memory.watch(requests), settings, COSTS)
    start, cpu_start = time.perf_counter(), time.process_time()
    recorder = simulation.run()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    num_steps = simulation.scheduler.counters.num_steps
    return SimulatorFigures(
        load=name,
        num_requests=recorder.num_arrived,
        num_steps=num_steps,
        mean_rows=recorder.output_tokens / num_steps,
        output_tokens=recorder.output_tokens,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        tokens_per_cpu_second=recorder.output_tokens / cpu_seconds,
        steps_per_cpu_second=num_steps / cpu_seconds,
        simulated_seconds=recorder.seconds,
        grown_mib=memory.grown_mib,
    )


def loads(num_requests: int, num_running: int, azure_rate: float) -> Iterator[SimulatorFigures]:
    """Requests without end at ``num_running`` rows, and the conversation trace."""
    settings = ServerSettings(
        SchedulerConfig(max_num_seqs=num_running, max_num_batched_tokens=max(2048, num_running)),
        CacheConfig(num_running * BLOCKS_PER_REQUEST),
    )
    requests = arriving(crowd(num_requests), num_running)
    yield measure(f"{num_running} running", requests, num_requests, settings)
    trace = TraceSource(azure_path("azure"), "azure").requests(Pace(rate=azure_rate, limit=num_requests))
    settings = ServerSettings(SchedulerConfig(max_model_len=AZURE_MAX_MODEL_LEN), CacheConfig(AZURE_NUM_BLOCKS))
    yield measure(f"azure, {azure_rate:g} requests/s", trace, num_requests, settings)


@click.command("simulate")
@click.option(
    "--num-requests", type=click.IntRange(4), default=19_366, show_default=True, help="Of each load, at most."
)
@click.option("--num-running", type=click.IntRange(1), default=256, show_default=True, help="Requests at once.")
@click.option("--azure-rate", type=click.FloatRange(0, min_open=True), default=5.5, show_default=True)
@json_option
def simulate_command(num_requests: int, num_running: int, azure_rate: float, json_path: Path | None) -> None:
    """Time the simulator on one core: every step through the engine's own scheduler and allocator."""
    rows = [asdict(figures) for figures in loads(num_requests, num_running, azure_rate)]
    report("simulate", rows, COLUMNS, json_path)
