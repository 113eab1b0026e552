"""Bounded skipping: small requests pass one that does not fit, so often and so long as is stated, and then give way."""

import random
from collections import Counter
from copy import deepcopy

import pytest

from octavo.core.errors import ConfigurationError, InvalidRequestError
from octavo.core.request import Request, Status
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import PREEMPTION_MODES, SkipBounds
from tests.support.fake_runner import expected_output
from tests.support.policies import POLICIES, with_policy
from tests.support.scheduling import Harness

FIXED = [policy for policy in POLICIES if policy.name != "fair"]
"""Policies under which the line keeps its order while a step is planned, so that it can be watched from outside."""

DEPTHS = pytest.mark.parametrize("depth", [1, 2])


def _blocked_harness(bounds: SkipBounds, depth: int = 1) -> tuple[Harness, Request, Request]:
    """A pool of 24 blocks of 4, of which a running request has nine, and fifteen when it ends; the head of the line
    needs eighteen."""
    harness = Harness(
        num_blocks=24,
        depth=depth,
        max_num_batched_tokens=64,
        prefix_caching=False,
        head_skips=bounds,
        admission_quantile=0.0,
    )
    first = harness.add(list(range(36)), 24)
    harness.step()
    head = harness.add(list(range(100, 170)), 3)
    return harness, first, head


def _add_small(harness: Harness, number: int, max_tokens: int) -> Request:
    return harness.add([500 + 10 * number + i for i in range(3)], max_tokens)


def _turns(harness: Harness, count: int) -> None:
    """``count`` plans, as many in flight as may be."""
    for _ in range(count):
        if len(harness.pending) == harness.depth or not harness.plan():
            harness.land()
            harness.plan()


def test_small_requests_pass_a_head_that_does_not_fit_in_their_order() -> None:
    harness, _, head = _blocked_harness(SkipBounds())
    large = harness.add(list(range(200, 270)), 2)
    small = [_add_small(harness, number, 2) for number in range(2)]
    harness.plan()
    assert [request.status for request in (head, large)] == [Status.WAITING] * 2
    assert [row.row_id for row in harness.runner.plans[-1].new_rows] == [request.row_id for request in small]
    assert (head.num_skips, large.num_skips) == (2, 2), "who stands further back is passed too"
    harness.run()
    assert all(request.status is Status.LENGTH for request in harness.requests)


def test_without_skips_it_is_first_come_first_served() -> None:
    harness, _, head = _blocked_harness(SkipBounds(max_skips=0))
    small = _add_small(harness, 0, 2)
    while head.status is Status.WAITING:
        assert small.status is Status.WAITING
        harness.step()
    assert head.num_skips == 0
    harness.run()


def test_no_more_than_so_many_pass() -> None:
    harness, _, head = _blocked_harness(SkipBounds(max_skips=3))
    small = [_add_small(harness, number, 1) for number in range(6)]
    while head.status is Status.WAITING:
        harness.step()
    assert head.num_skips == 3
    assert [request.status for request in small[:3]] == [Status.LENGTH] * 3
    assert all(request.num_output_tokens == 0 for request in small[3:])
    harness.run()


@DEPTHS
def test_those_who_passed_give_way_when_the_head_is_overdue(depth: int) -> None:
    """Its turn is overdue in the fifth step; then the first request ends, and what is left is held by one that
    passed."""
    harness, first, head = _blocked_harness(SkipBounds(max_steps=5), depth)
    small = _add_small(harness, 0, 50)
    _turns(harness, 6)
    assert small.status is Status.RUNNING
    late = _add_small(harness, 1, 1)
    _turns(harness, 6)
    assert late.status is Status.WAITING, "nobody passes one that is overdue"
    while not first.is_finished:
        assert small.status is Status.RUNNING, "to give way would be of no use yet"
        _turns(harness, 1)
    _turns(harness, 1 + depth)
    assert head.status is Status.RUNNING or head.is_finished
    harness.run()
    for request, max_tokens in ((first, 24), (head, 3), (small, 50), (late, 1)):
        prompt = request.token_ids[: request.num_prompt_tokens]
        assert request.token_ids[request.num_prompt_tokens :] == expected_output(prompt, max_tokens)


def test_a_turn_is_overdue_by_the_clock_too() -> None:
    harness, _, head = _blocked_harness(SkipBounds(max_seconds=10.0))
    harness.scheduler.tell_time(1000.0)
    _add_small(harness, 0, 1)
    _turns(harness, 1)
    assert head.num_skips == 1
    harness.scheduler.tell_time(1009.9)
    _add_small(harness, 1, 1)
    _turns(harness, 1)
    assert head.num_skips == 2
    harness.scheduler.tell_time(1010.0)
    late = _add_small(harness, 2, 1)
    _turns(harness, 3)
    assert (late.status, head.num_skips) == (Status.WAITING, 2)
    harness.run()


@pytest.mark.parametrize("bounds", [(-1, 1, 1.0), (1, -1, 1.0), (1, 1, float("nan"))])
def test_bounds_below_nothing_are_refused(bounds: tuple[int, int, float]) -> None:
    with pytest.raises(ConfigurationError, match="max_head_skip"):
        SkipBounds(*bounds)


class Watch:
    """Who passed whom, counted from outside, and whether those who are overdue are kept out."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.passes: Counter[Request] = Counter()
        self.first: dict[Request, int] = {}
        self.num_kept_out = 0
        self.happened: Counter[str] = Counter()

    def plan(self) -> None:
        scheduler, bounds = self.harness.scheduler, self.harness.head_skips
        line = [(request, request.status) for request in scheduler.waiting]
        num_preemptions = scheduler.counters.num_preemptions
        head = scheduler.waiting.peek()
        could_start = head is not None and self._is_overdue(head) and _starts_without_younger(scheduler, head)
        if not self.harness.plan():
            return
        step_id = self.harness.runner.plans[-1].step_id
        admitted = [request for request, _ in line if request.status is Status.RUNNING]
        has_preempted = scheduler.counters.num_preemptions > num_preemptions
        if has_preempted and admitted:
            assert admitted == [head], "nobody but the one for whom others gave way"
            self.happened["made way"] += 1
        for place, (request, _) in enumerate(line):
            if request in admitted:
                for passed, status in line[:place]:
                    if passed in scheduler.waiting:
                        assert status is Status.WAITING, "a preempted request was passed"
                        self.passes[passed] += 1
                        self.happened["passes"] += 1
                        self.first.setdefault(passed, step_id)
                        assert step_id - self.first[passed] < max(1, bounds.max_steps)
        assert max(self.passes.values(), default=0) <= bounds.max_skips
        for request, count in self.passes.items():  # one that has passed, for what is cached, may be followed at once
            assert request.num_skips >= count
            assert request.num_skips == count or self.harness.prefix_caching
        self.num_kept_out = self.num_kept_out + 1 if could_start and head not in admitted else 0
        num_younger = sum(other.rank > head.rank for other in scheduler.running) if head else 0
        assert self.num_kept_out <= num_younger + self.harness.depth, "it fits without those that passed it"

    def _is_overdue(self, request: Request) -> bool:
        next_step = self.harness.scheduler.counters.num_steps
        is_passed = request in self.first and request.status is Status.WAITING
        return is_passed and next_step - self.first[request] >= self.harness.head_skips.max_steps


def _starts_without_younger(scheduler: Scheduler, head: Request) -> bool:
    """Would the next step admit the first in line if nobody younger were there? Tried on a copy."""
    scheduler, head = deepcopy((scheduler, head))
    for request in [request for request in scheduler.running if request.rank > head.rank]:
        scheduler.abort(request)
    return scheduler.schedule() is not None and head.status is Status.RUNNING


def _random_harness(rng: random.Random, bounds: SkipBounds) -> Harness:
    num_groups = rng.choice([1, 1, 2])
    return Harness(
        num_blocks=rng.randint(12, 30) * num_groups,
        num_groups=num_groups,
        windows=rng.choice([(), (None, 7)]) if num_groups == 2 else (),
        depth=rng.choice([1, 1, 2]),
        max_num_seqs=rng.randint(3, 8),
        max_num_batched_tokens=rng.randint(16, 64),
        prefix_caching=rng.random() < 0.5,
        num_host_blocks=rng.choice([0, 40]),
        preemption_mode=rng.choice(PREEMPTION_MODES),
        head_skips=bounds,
        **with_policy(rng.choice(FIXED)),
    )


def _add(harness: Harness, rng: random.Random) -> None:
    """Large ones and small ones; some share what they begin with, some have several choices."""
    head = list(range(rng.choice([0, 0, 8])))
    prompt = head + [rng.randrange(900) for _ in range(rng.choice([2, 3, 6, 24, 40]))]
    try:
        harness.add_choices(prompt, rng.choice([1, 1, 1, 2]), rng.choice([1, 4, 30]))
    except InvalidRequestError:
        assert len(prompt) + 1 > harness.scheduler.door.max_tokens_per_sequence - 30


def _run_watched(seed: int, bounds: SkipBounds) -> Watch:
    rng = random.Random(seed)
    harness = _random_harness(rng, bounds)
    watch = Watch(harness)
    for _ in range(8):
        _add(harness, rng)
    for _ in range(120):
        action = rng.random()
        if action < 0.1:
            _add(harness, rng)
        elif action < 0.12:
            harness.scheduler.abort(rng.choice(harness.requests))
        elif action < 0.6:
            if len(harness.pending) < harness.depth:
                watch.plan()
        else:
            harness.land()
    while harness.scheduler.has_work:
        if len(harness.pending) < harness.depth:
            watch.plan()
        assert harness.land() or harness.scheduler.has_work
    harness.run()
    for request in harness.requests:
        harness.check_answer(request)
        assert request.status in (Status.LENGTH, Status.ABORTED)
    return watch


@pytest.mark.parametrize("seed", range(40))
def test_nobody_is_passed_or_kept_out_beyond_the_bounds(seed: int) -> None:
    rng = random.Random(seed)
    _run_watched(seed, SkipBounds(rng.choice([1, 2, 5, 32]), rng.choice([0, 1, 3, 10, 256])))


def test_in_those_runs_requests_are_passed_and_others_give_way() -> None:
    """The power check of the test above."""
    happened: Counter[str] = Counter()
    for seed in range(30):
        happened += _run_watched(seed, SkipBounds(5, 1)).happened
    assert happened["passes"] > 50
    assert happened["made way"] > 2


@pytest.mark.parametrize("seed", range(20))
def test_answers_are_those_of_first_come_first_served(seed: int) -> None:
    answers = []
    for bounds in (SkipBounds(max_skips=0), SkipBounds(), SkipBounds(max_steps=2)):
        rng = random.Random(seed)
        harness = _random_harness(rng, bounds)
        for _ in range(20):
            _add(harness, rng)
        harness.run()
        answers.append([request.token_ids for request in harness.requests])
    assert answers[0] == answers[1] == answers[2]
