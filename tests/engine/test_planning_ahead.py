"""Two steps in flight hide planning behind a device that computes by itself; on a simulated clock."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import SchedulerConfig
from octavo.core.step import PendingStep, StepPlan, StepResult
from octavo.engine.engine import Engine, EngineParts
from octavo.engine.messages import EngineRequest
from tests.engine.test_engine import Pieces
from tests.support.fake_runner import VOCAB_SIZE, FakeRunner, expected_output

NUM_TOKENS = 101


@dataclass
class Clock:
    """The time of the process that plans, in milliseconds."""

    now: float = 0.0

    def __call__(self) -> float:
        return 1.0 + self.now / 1e3


@dataclass
class Landing:
    """A step that the device has done at ``end``."""

    clock: Clock
    end: float
    step: PendingStep

    def result(self) -> StepResult:
        self.clock.now = max(self.clock.now, self.end)
        return self.step.result()


@dataclass
class Device(FakeRunner):
    """Takes ``milliseconds`` for a step, one after the other, while the process goes on."""

    clock: Clock = field(default_factory=Clock)
    milliseconds: float = 0.0
    free_at: float = 0.0

    def submit(self, plan: StepPlan) -> Any:
        self.free_at = max(self.clock.now, self.free_at) + self.milliseconds
        return Landing(self.clock, self.free_at, super().submit(plan))


def milliseconds_per_step(depth: int, device: float, plan: float, num_streams: int = 3) -> float:
    """Of streams that all decode."""
    clock, seeds = Clock(), count()

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def planning(*args: Any) -> Any:
            clock.now += plan
            return function(*args)

        return planning if part == "plan" else function

    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_steps_in_flight=depth),
        KVCacheManager(CacheConfig(200, 4, 1, True, b"test")),
    )
    engine = Engine(
        EngineParts(
            scheduler=scheduler,
            runner=Device(4, clock=clock, milliseconds=device),
            pieces=Pieces(),
            eos_token_ids=frozenset(),
            vocab_size=VOCAB_SIZE,
            clock=clock,
            draw_seed=lambda: next(seeds),
            block_bytes=1024,
            timed=timed,
        )
    )
    answers: dict[str, list[int]] = {}
    for number in range(num_streams):
        params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS)
        engine.add_request(EngineRequest(str(number), [number, 1, 2], params, 1.0))
        answers[str(number)] = []
    landed = []
    while engine.has_work():
        for delta in engine.step().deltas:
            answers[delta.request_id] += delta.token_ids
        landed.append(clock.now)
    assert answers == {name: expected_output([int(name), 1, 2], NUM_TOKENS) for name in answers}
    return (landed[90] - landed[10]) / 80


@pytest.mark.parametrize(("device", "plan"), [(10.0, 1.0), (10.0, 9.5), (2.0, 5.0), (3.0, 0.0)])
def test_two_steps_in_flight_hide_planning_wholly(device: float, plan: float) -> None:
    assert milliseconds_per_step(1, device, plan) == pytest.approx(device + plan)
    assert milliseconds_per_step(2, device, plan) == pytest.approx(max(device, plan))


def test_steps_are_timed_from_where_the_one_before_ends() -> None:
    """What is measured of a step that was submitted early is what the device took for it."""
    clock = Clock()
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_steps_in_flight=2),
        KVCacheManager(CacheConfig(200, 4, 1, True, b"test")),
    )
    seen: list[float] = []
    note = scheduler.pace.note

    def noting(plan: StepPlan, seconds: float) -> None:
        seen.append(seconds)
        note(plan, seconds)

    scheduler.pace.note = noting  # type: ignore[method-assign]
    runner = Device(4, clock=clock, milliseconds=10.0)
    engine = Engine(EngineParts(scheduler, runner, Pieces(), frozenset(), VOCAB_SIZE, clock, lambda: 0, 1024))
    params = SamplingParams(temperature=0, max_tokens=20)
    engine.add_request(EngineRequest("0", [1, 2, 3], params, 1.0))
    while engine.has_work():
        engine.step()
    assert seen == pytest.approx([0.010] * 20)
