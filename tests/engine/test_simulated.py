"""The simulator decides as the engine does: the same requests at the same times give the same plans, step by step."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import PolicySettings, PreemptionMode, SchedulerConfig
from octavo.core.step import PendingStep, StepPlan, StepResult
from octavo.engine.engine import Engine, EngineParts
from octavo.engine.messages import EngineRequest
from octavo.sim.costs import LinearCosts, work_of
from octavo.sim.replica import move_seconds
from octavo.sim.simulation import ServerSettings, Simulation
from octavo.sim.traces.request import TracedRequest
from tests.engine.test_engine import Pieces
from tests.support.fake_runner import VOCAB_SIZE, FakeRunner

COSTS = LinearCosts(base=0.02, per_decode=0.001, per_chunk_token=0.0007, per_chunk_context=1e-6, per_moved_block=1e-4)

BLOCK_SIZE = 8

Decisions = tuple[object, ...]


@dataclass
class Clock:
    """Stands still but while steps are computed."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Landing:
    clock: Clock
    seconds: float
    step: PendingStep

    def result(self) -> StepResult:
        self.clock.now += self.seconds
        return self.step.result()


@dataclass
class Machine(FakeRunner):
    """Takes as long for a step as the cost model says. ``decided``: what each was, and when."""

    clock: Clock = field(default_factory=Clock)
    decided: list[Decisions] = field(default_factory=list)

    def submit(self, plan: StepPlan) -> Any:
        self.decided.append((self.clock.now, *decisions(plan)))
        return Landing(self.clock, COSTS.step_seconds(work_of(plan)), super().submit(plan))


def decisions(plan: StepPlan) -> Decisions:
    """All of a plan but what is written in the rows."""
    rows = plan.row_ids, plan.starts, plan.counts, plan.samples, plan.released_rows
    moves = plan.swap_outs, plan.swap_ins, plan.copies, plan.table_writes
    return (plan.step_id, *(tuple(each) for each in (*rows, *moves)))


def served(requests: Sequence[TracedRequest], settings: ServerSettings) -> tuple[list[Decisions], Scheduler]:
    """By the engine, with a runner that computes nothing."""
    clock, seeds, source = Clock(), count(), random.Random(1)
    scheduler = Scheduler(settings.scheduler, KVCacheManager(settings.cache))
    scheduler.population.costs.seconds_per_block = move_seconds(COSTS)
    machine = Machine(settings.cache.block_size, clock=clock)
    engine = Engine(
        EngineParts(
            scheduler=scheduler,
            runner=machine,
            pieces=Pieces(),
            eos_token_ids=frozenset(),
            vocab_size=VOCAB_SIZE,
            clock=clock,
            draw_seed=lambda: next(seeds),
            block_bytes=1024,
        )
    )
    coming = list(enumerate(requests))
    while coming or engine.has_work():
        if not engine.has_work():
            clock.now = max(clock.now, coming[0][1].seconds)
        while coming and coming[0][1].seconds <= clock.now:
            number, request = coming.pop(0)
            shared = [900 + name for name in request.blocks for _ in range(BLOCK_SIZE)]
            prompt = [*shared, number, *source.choices(range(VOCAB_SIZE), k=request.prompt - len(shared) - 1)]
            params = SamplingParams(temperature=0, max_tokens=request.output, ignore_eos=True)
            engine.add_request(EngineRequest(str(number), prompt, params, clock.now))
        engine.step()
    return machine.decided, scheduler


def simulated(requests: Sequence[TracedRequest], settings: ServerSettings) -> tuple[list[Decisions], Scheduler]:
    decided: list[Decisions] = []
    simulation = Simulation(requests, settings, COSTS)
    simulation.run(lambda step: decided.append((step.start, *decisions(step.plan))))
    return decided, simulation.scheduler


def load(rate: float, *, shares: bool = False) -> list[TracedRequest]:
    """``shares``: prompts begin with up to four blocks that others begin with too, else with a token of their own."""
    source, now, requests = random.Random(0), 0.0, []
    for _ in range(80):
        now += source.expovariate(rate)
        names = tuple(source.choices(range(2), k=source.randint(0, 4))) if shares else ()
        prompt = len(names) * BLOCK_SIZE + source.randint(8, 120)
        requests.append(TracedRequest(now, prompt, source.randint(1, 60), None, names, BLOCK_SIZE))
    return requests


@pytest.mark.parametrize("rate", [1.0, 8.0, 1e6])
@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
@pytest.mark.parametrize("quantile", [0.0, 0.9])
def test_the_same_decisions_at_the_same_times(rate: float, mode: PreemptionMode, quantile: float) -> None:
    """One after the other, several at once, and all at once: then memory is short."""
    config = SchedulerConfig(
        max_num_seqs=16,
        max_num_batched_tokens=64,
        max_model_len=256,
        preemption_mode=mode,
        admission_quantile=quantile,
    )
    settings = ServerSettings(config, CacheConfig(48, BLOCK_SIZE, num_host_blocks=40 if mode != "recompute" else 0))
    (real, engine), (made_up, simulation) = served(load(rate), settings), simulated(load(rate), settings)
    assert made_up == real
    assert simulation.counters == engine.counters
    if rate > 1 and not quantile:
        assert engine.counters.num_preemptions > 0


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_the_same_under_every_policy(policy: Any) -> None:
    config = SchedulerConfig(
        max_num_seqs=16, max_num_batched_tokens=64, max_model_len=256, policy=PolicySettings(policy)
    )
    settings = ServerSettings(config, CacheConfig(48, BLOCK_SIZE))
    assert simulated(load(8.0), settings)[0] == served(load(8.0), settings)[0]


@pytest.mark.parametrize("rate", [4.0, 1e6])
def test_the_same_where_prompts_share_blocks(rate: float) -> None:
    settings = ServerSettings(
        SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=64, max_model_len=256), CacheConfig(48, BLOCK_SIZE)
    )
    requests = load(rate, shares=True)
    (real, engine), (made_up, simulation) = served(requests, settings), simulated(requests, settings)
    assert made_up == real
    assert simulation.counters == engine.counters
    assert engine.counters.prefix_hits > 500
