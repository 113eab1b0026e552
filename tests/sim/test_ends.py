"""Answers end where the trace says, though they might have gone on."""

import random

import pytest

from octavo.core.kv_types import CacheConfig
from octavo.core.request import Status
from octavo.core.scheduler_types import SchedulerConfig
from octavo.sim.costs import LinearCosts
from octavo.sim.replay import LandedStep
from octavo.sim.simulation import ServerSettings, Simulation
from octavo.sim.traces.request import TracedRequest

COSTS = LinearCosts(0.01, 0.001, 0.0003)


@pytest.mark.parametrize("seed", range(12))
def test_every_answer_has_as_many_tokens_as_it_got(seed: int) -> None:
    """With few blocks, so that requests are preempted at any moment, the last one too."""
    source = random.Random(seed)
    num_blocks, rows = source.randint(12, 60), source.choice([1, 2, 5, 32])
    requests = [
        TracedRequest(0.05 * number, source.randint(1, 90), source.randint(1, 60), source.choice([None, 1, 90]))
        for number in range(150)
    ]
    lengths: dict[int, int] = {}

    def note(step: LandedStep) -> None:
        for request in step.outcome.finished:
            number = int(request.request_id)
            lengths[number] = request.num_output_tokens
            asked = requests[number].max_tokens
            may_go_on = asked is not None and asked > requests[number].output
            assert request.status is (Status.STOPPED if may_go_on else Status.LENGTH)

    config = SchedulerConfig(
        max_num_seqs=rows, max_num_batched_tokens=64, max_model_len=num_blocks * 16, admission_quantile=0.0
    )
    simulation = Simulation(requests, ServerSettings(config, CacheConfig(num_blocks)), COSTS)
    recorder = simulation.run(note)
    assert recorder.num_preempted > 0 or rows < 32
    assert lengths == {number: request.output for number, request in enumerate(requests)}
