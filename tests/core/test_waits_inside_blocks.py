"""Those who wait for tokens of a block that another computes."""

import pytest

from octavo.core.request import Request, Status
from octavo.core.step import StepPlan
from tests.core.sharing import DEPTHS, SIZE, ask, check, fail_once, large, small
from tests.support.scheduling import Harness


def _with_owner(depth: int = 1, **settings: object) -> tuple[Harness, Request, Request]:
    """Two prompts that share 62 tokens, 15 blocks of 4 and two tokens of the next: the last chunk of the first is in
    flight, the second waits for it."""
    harness = small(**{"max_num_batched_tokens": 24, "depth": depth} | settings)
    harness.add([600, 601], 40)
    owner = harness.add([*range(62), 900, 901, 902], 4)
    waiter = harness.add([*range(62), 800, 801, 802], 4)
    while waiter not in harness.scheduler.prefix_waits:
        assert harness.step()
    assert owner.num_in_flight
    return harness, owner, waiter


def _go_on(harness: Harness, waiter: Request) -> None:
    harness.run()
    assert waiter.status is Status.LENGTH
    harness.check_answer(waiter)


def test_a_block_is_waited_for_that_shares_more_than_what_is_cached() -> None:
    """One token of the second block is cached, from another prompt; three are being computed."""
    harness = small()
    ask(harness, [0, 1, 2, 3, 4, 99, 98])
    harness.add([0, 1, 2, 3, 4, 5, 6, 97, *range(200, 220)], 2)
    waiter = harness.add([0, 1, 2, 3, 4, 5, 6, 77, 76, 75], 2)
    other = harness.add([0, 1, 2, 3, 4, 50, 51], 2)
    harness.step()
    assert waiter in harness.scheduler.prefix_waits
    assert other not in harness.scheduler.prefix_waits, "it would gain nothing"
    harness.run()
    check(harness)
    assert (waiter.num_cached_tokens, other.num_cached_tokens) == (7, 5)


def test_a_token_or_two_at_the_very_beginning_are_not_worth_a_wait() -> None:
    harness = large()
    harness.add([0, 1, *range(100, 200)], 2)
    hasty = harness.add([0, 1, 7, 8, 9], 2)
    patient = harness.add([0, 1, 100, 101, 7, 8, 9], 2)
    harness.step()
    assert hasty not in harness.scheduler.prefix_waits
    assert patient in harness.scheduler.prefix_waits
    harness.run()
    check(harness)
    assert patient.num_cached_tokens == 4


@DEPTHS
def test_a_waiter_goes_on_when_the_block_has_landed(depth: int) -> None:
    harness, _, waiter = _with_owner(depth)
    _go_on(harness, waiter)
    assert waiter.num_cached_tokens == 62
    check(harness)


@DEPTHS
@pytest.mark.parametrize("lands_first", [False, True])
def test_a_waiter_goes_on_when_the_owner_is_aborted(depth: int, lands_first: bool) -> None:
    """With what has landed by then: full blocks, or all once the step in flight has."""
    harness, owner, waiter = _with_owner(depth, max_num_seqs=3)
    num_landed = owner.num_landed_tokens
    harness.scheduler.abort(owner)
    assert waiter not in harness.scheduler.prefix_waits
    while lands_first and harness.pending:
        harness.land()
    _go_on(harness, waiter)
    assert 0 < num_landed < 62
    assert waiter.num_cached_tokens == (62 if lands_first or depth == 1 else num_landed // 4 * 4)


@DEPTHS
def test_a_waiter_goes_on_when_the_owner_fails(depth: int) -> None:
    harness, owner, waiter = _with_owner(depth)

    def fails(plan: StepPlan) -> None:
        if owner.row_id in plan.row_ids:
            raise RuntimeError("injected")

    harness.runner.fails = fails
    _go_on(harness, waiter)
    assert owner.status is Status.FAILED


@DEPTHS
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_waiter_goes_on_when_the_owner_is_preempted(depth: int, mode: str) -> None:
    """After a failed step, so that the owner can be preempted before its last chunk has landed."""
    harness, owner, waiter = _with_owner(depth, num_host_blocks=64, preemption_mode=mode)
    failed = fail_once(harness, lambda plan: True)
    while not failed:
        assert harness.step()
    assert waiter in harness.scheduler.prefix_waits
    assert owner.num_landed_tokens < 65
    harness.scheduler.population.preempt(owner)
    harness.check()
    assert waiter not in harness.scheduler.prefix_waits
    harness.run()
    check(harness)


def test_a_wait_for_tokens_of_a_block_is_bounded() -> None:
    """The prompts share a part of their first block alone. The step that computes it takes its time; the next one is
    planned meanwhile."""
    harness = small(depth=2, block_size=SIZE, max_prefix_wait_steps=1)
    harness.add([600, 601], 40)
    harness.step(), harness.land()
    harness.add([*range(14), 900], 2)
    waiter = harness.add([*range(14), 800], 2)
    harness.plan()
    assert waiter in harness.scheduler.prefix_waits
    harness.plan()
    assert waiter.status is Status.RUNNING
    assert waiter.num_cached_tokens == 0
    harness.run()
    check(harness)
