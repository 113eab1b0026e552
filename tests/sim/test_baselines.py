"""Schedulers of before paged memory, driven by the simulator's loop: hand-made cases."""

import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.sim.baselines.allocators import FirstFit
from octavo.sim.baselines.contiguous import ContiguousScheduler
from octavo.sim.baselines.memory import Memory
from octavo.sim.baselines.reservation import reserve_exactly, reserve_maximum
from octavo.sim.baselines.static import StaticScheduler
from octavo.sim.replay import Arrival, Replay, Server, Steps

MEMORY = Memory(num_blocks=1)
"""16 slots."""


def request(name: str, prompt: int, output: int) -> Request:
    return Request(name, [1] * prompt, SamplingParams(), max_tokens=output)


def told(scheduler: Steps, *arrivals: Arrival) -> list[tuple[float, int, list[str], list[str]]]:
    """When each step landed, how many tokens it computed, who drew and who ended."""
    return [
        (
            step.now,
            step.plan.num_tokens,
            [each.request_id for each in step.outcome.sampled],
            [each.request_id for each in step.outcome.finished],
        )
        for step in Replay([Server(scheduler, lambda _plan: 1.0)], arrivals).steps()
    ]


def test_continuous_batching_lets_in_who_comes_as_soon_as_there_is_a_piece() -> None:
    scheduler = ContiguousScheduler(MEMORY, reserve_maximum(8))
    assert told(
        scheduler,
        Arrival(0, request("a", 3, 3)),
        Arrival(0, request("b", 2, 1)),
        Arrival(0.5, request("c", 4, 2)),
    ) == [
        (1, 5, ["a", "b"], ["b"]),
        (2, 5, ["a", "c"], []),  # c has the piece of b
        (3, 2, ["a", "c"], ["a", "c"]),
    ]
    assert (scheduler.held_slots, scheduler.filled_slots, scheduler.has_work) == (0, 0, False)


def test_a_static_batch_ends_as_a_whole_and_computes_padding() -> None:
    scheduler = StaticScheduler(MEMORY, reserve_maximum(8))
    assert told(
        scheduler,
        Arrival(0, request("a", 3, 3)),
        Arrival(0, request("b", 2, 1)),
        Arrival(0.5, request("c", 4, 2)),
    ) == [
        (1, 6, ["a", "b"], []),
        (2, 2, ["a"], []),
        (3, 2, ["a"], ["a", "b"]),
        (4, 4, ["c"], []),
        (5, 1, ["c"], ["c"]),
    ]
    assert (scheduler.held_slots, scheduler.filled_slots, scheduler.has_work) == (0, 0, False)


def test_what_a_static_batch_fills_and_holds() -> None:
    scheduler = StaticScheduler(MEMORY, reserve_maximum(8))
    for each in (request("a", 3, 3), request("b", 2, 1), request("c", 1, 1)):
        scheduler.add(each)
    scheduler.schedule()
    assert (scheduler.filled_slots, scheduler.held_slots, scheduler.num_running) == (5, 16, 2)
    assert (scheduler.num_waiting, scheduler.is_blocked) == (1, True)


@pytest.mark.parametrize("make", [ContiguousScheduler, StaticScheduler])
def test_what_never_fits_is_refused(make: type[ContiguousScheduler] | type[StaticScheduler]) -> None:
    scheduler = make(MEMORY, reserve_exactly(FirstFit))
    scheduler.door.check(10, 6)
    with pytest.raises(InvalidRequestError, match="16 slots have no piece of 17"):
        scheduler.door.check(10, 7)
    with pytest.raises(InvalidRequestError, match="holds 9 tokens"):
        make(MEMORY, reserve_maximum(8)).door.check(5, 4)
