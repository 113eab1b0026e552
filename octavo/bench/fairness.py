"""``octavo bench fairness``: what two tenants get, one of which sends ten times as much, under each policy.

Requests of the Azure conversation trace arrive faster than they can be served. The scheduler and the allocator are
those of the engine, the runner computes nothing; time is counted in steps, so the figures are the same everywhere.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import quantiles

import click

from octavo.bench.replay import Waits, one_step, poisson_arrivals
from octavo.bench.report import report
from octavo.bench.traces import Lengths, draw_lengths
from octavo.cli.table import json_option
from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig
from octavo.core.request import Request, Status
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import POLICY_NAMES, PolicySettings, SchedulerConfig
from octavo.sim.replay import Arrival, Replay, Server

HEAVY, LIGHT = "heavy", "light"

TIMES = 10
"""So many requests the heavy tenant sends for each of the light one's, which under "priority" has the better one."""

DIVISOR = 8
"""Lengths are those of the trace over this, so that a run takes seconds."""

STEP_SECONDS = 0.05
"""Of the clock by which priorities age."""

NUM_SAMPLES = 50
"""Of the difference over time, in the JSON."""

COLUMNS = {
    "policy": "policy",
    "worst_difference": "service: largest difference",
    "bound": "bound",
    "light_p50": "light: TTFT p50",
    "light_p90": "p90",
    "heavy_p50": "heavy: TTFT p50",
    "heavy_p90": "p90",
    "num_preemptions": "preemptions",
    "num_steps": "steps",
}


@dataclass(frozen=True, slots=True)
class Load:
    """``rate`` requests arrive a step on average; ``num_blocks`` blocks of 16 tokens hold them."""

    lengths: Sequence[Lengths]
    rate: float
    num_blocks: int
    max_num_seqs: int
    seed: int

    def arrivals(self) -> Iterator[Arrival]:
        """Requests and the step before which each arrives; the same each time."""
        for number, arrival in enumerate(poisson_arrivals(self.lengths, self.rate, self.seed)):
            is_light = number % (TIMES + 1) == TIMES
            arrival.request.tenant, arrival.request.priority = (LIGHT, 0) if is_light else (HEAVY, 1)
            yield arrival

    def bound(self, policy: PolicySettings) -> float:
        """By how much the service of two tenants may differ under "fair": docs/scheduling.md."""
        longest_prompt = max(lengths.prompt for lengths in self.lengths)
        longest_answer = max(lengths.output for lengths in self.lengths)
        answers = policy.fair_output_weight * self.max_num_seqs * longest_answer
        return policy.fair_input_weight * longest_prompt + answers + policy.fair_slack

    def make_scheduler(self, policy: PolicySettings) -> Scheduler:
        config = SchedulerConfig(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=512,
            max_model_len=self.num_blocks * 16,
            policy=policy,
        )
        return Scheduler(config, KVCacheManager(CacheConfig(self.num_blocks)))


@dataclass(slots=True)
class Run:
    """What came of a load. ``waits``: steps from arrival to first token, by request. ``differences``: what the heavy
    tenant has got more than the light one, in weighted tokens, since both have had something in line; while they have,
    a step each."""

    waits: dict[Request, float] = field(default_factory=dict)
    differences: list[float] = field(default_factory=list)
    num_preemptions: int = 0
    num_steps: int = 0


def run(load: Load, policy: PolicySettings) -> Run:
    """The whole load, to its last token."""
    scheduler, found, arrivals = load.make_scheduler(policy), Run(), list(load.arrivals())
    server = Server(scheduler, one_step, tell_time=lambda now: scheduler.tell_time(now * STEP_SECONDS))
    replay, times, since = Replay([server], arrivals), Waits(arrivals), 0.0
    requests = [arrival.request for arrival in arrivals]
    for step in replay.steps():
        times.note(step)
        ahead = _service(requests, HEAVY, policy) - _service(requests, LIGHT, policy)
        if {HEAVY, LIGHT} <= {each.tenant for each in scheduler.open_requests if each.status is Status.WAITING}:
            found.differences.append(ahead - since)
        else:
            since = ahead
    found.waits = times.waits
    found.num_preemptions, found.num_steps = scheduler.counters.num_preemptions, int(replay.now)
    return found


def _service(requests: Sequence[Request], tenant: str, policy: PolicySettings) -> float:
    """Weighted tokens that a tenant has got, counted from the requests themselves."""
    started = [each for each in requests if each.tenant == tenant and each.status is not Status.WAITING]
    num_computed = sum(each.num_prompt_tokens - (each.num_cached_tokens or 0) for each in started)
    num_said = sum(each.num_output_tokens for each in started)
    return policy.fair_input_weight * num_computed + policy.fair_output_weight * num_said


@dataclass(frozen=True, slots=True)
class FairnessFigures:
    """Times to the first token are in steps; ``bound`` is kept under "fair"."""

    policy: str
    worst_difference: float
    bound: float
    light_p50: float
    light_p90: float
    heavy_p50: float
    heavy_p90: float
    num_preemptions: int
    num_steps: int
    differences: list[float]


def measure(load: Load) -> Iterator[FairnessFigures]:
    """The same load under each policy."""
    for name in POLICY_NAMES:
        policy = PolicySettings(name)
        found = run(load, policy)
        light, heavy = (
            quantiles([wait for request, wait in found.waits.items() if request.tenant == tenant], n=10)
            for tenant in (LIGHT, HEAVY)
        )
        every = max(1, len(found.differences) // NUM_SAMPLES)
        yield FairnessFigures(
            policy=name,
            worst_difference=max(map(abs, found.differences), default=0.0),
            bound=load.bound(policy),
            light_p50=light[4],
            light_p90=light[8],
            heavy_p50=heavy[4],
            heavy_p90=heavy[8],
            num_preemptions=found.num_preemptions,
            num_steps=found.num_steps,
            differences=found.differences[::every],
        )


@click.command("fairness")
@click.option("--num-requests", type=click.IntRange(44), default=330, show_default=True, help="Of both tenants.")
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    default=0.5,
    show_default=True,
    help="Requests that arrive a step, on average.",
)
@click.option("--num-blocks", type=click.IntRange(1), default=500, show_default=True, help="Of 16 tokens.")
@click.option("--max-num-seqs", type=click.IntRange(1), default=8, show_default=True, help="Most sequences in a step.")
@click.option("--seed", type=int, default=0, show_default=True, help="Draws the requests and when they arrive.")
@json_option
def fairness_command(
    num_requests: int, rate: float, num_blocks: int, max_num_seqs: int, seed: int, json_path: Path | None
) -> None:
    """Compare the scheduling policies where one of two tenants sends ten times as much: in steps.

    Service is what a tenant got in weighted tokens; its difference counts while both have requests in line, against the
    bound that the policy "fair" keeps.
    """
    load = Load(draw_lengths(num_requests, seed, DIVISOR), rate, num_blocks, max_num_seqs, seed)
    report("fairness", [asdict(figures) for figures in measure(load)], COLUMNS, json_path)
