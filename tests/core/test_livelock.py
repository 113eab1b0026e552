"""A livelock is impossible, under every policy: every request ends; who preempts whom never turns round; and nobody is
preempted more often than is stated (docs/scheduling.md, "When blocks run out")."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.invariants import check_line
from octavo.core.plan_draft import PlanDraft
from octavo.core.request import Request, Status
from octavo.core.scheduler_types import PolicySettings
from tests.support.naive_beam_search import Search
from tests.support.policies import POLICIES
from tests.support.schedules import Schedule
from tests.support.scheduling import Harness


class Watch:
    """Who was preempted for whom in a schedule, and what those before each in rank were given meanwhile."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.scheduler = schedule.harness.scheduler
        self.pairs: set[tuple[Request, Request]] = set()
        self.ranks: dict[Request, int] = {}
        self.cleared: set[Request] = set()
        self.allowed: Counter[Request] = Counter()
        self.preempted: Counter[Request] = Counter()
        self.started_before: Counter[Request] = Counter()
        self.stood_back: Counter[Request] = Counter()
        planner: Any = self.scheduler._planner
        population: Any = self.scheduler.population
        planner.admission.clear_way = self._noting_who_is_let_in(planner.admission.clear_way)
        population.preempt = self._noting(population.preempt)
        population.running.add = self._noting_who_starts(population.running.add)
        planner.plan = self._counting(planner.plan)

    def _noting_who_is_let_in(self, clear_way: Callable[[PlanDraft], None]) -> Callable[[PlanDraft], None]:
        def wrapped(draft: PlanDraft) -> None:
            first = self.scheduler.waiting.peek()
            clear_way(draft)
            if first is not None and draft.is_for_one:
                self.cleared.add(first)

        return wrapped

    def _noting(self, preempt: Callable[..., None]) -> Callable[..., None]:
        def wrapped(victim: Request, first: Request | None = None) -> None:
            self.preempted[victim] += 1
            if first is None:  # nobody could run, as beams wait for one of theirs
                assert victim is self.scheduler.running.last
                self.stood_back[victim] += 1
                bound = self.started_before[victim] + self.num_passes
                assert self.stood_back[victim] <= bound, "it came back before those that it went for"
            else:
                assert first.rank < victim.rank, "somebody gave way to one that comes after it"
                assert (victim, first) not in self.pairs, "two requests took turns"
                self.pairs.add((first, victim))
            for request in (victim, *([first] if first else [])):
                assert self.ranks.setdefault(request, request.rank) == request.rank, "a rank has changed"
            preempt(victim, first)
            check_line(self.scheduler)
            if first is not None and first.status is not Status.RUNNING:
                assert self.scheduler.waiting.peek() is first, "who gave way goes first again"

        return wrapped

    def _noting_who_starts(self, add: Callable[[Request], None]) -> Callable[[Request], None]:
        def wrapped(request: Request) -> None:
            add(request)
            for other in self.schedule.harness.requests:
                if not other.is_finished and request.rank < other.rank:
                    self.started_before[other] += 1

        return wrapped

    @property
    def num_passes(self) -> int:
        return sum(request.num_skips for request in self.schedule.harness.requests)

    def _counting(self, plan: Callable[[Request | None], Any]) -> Callable[[Request | None], Any]:
        """A block that a request is given lets it preempt each of those after it once."""

        def wrapped(on_trial: Request | None) -> Any:
            before = {request: self._num_blocks(request) for request in self.scheduler.running}
            flight = plan(on_trial)
            for request in self.scheduler.running:
                num_given = max(0, self._num_blocks(request) - before.get(request, 0))
                for other in self.schedule.harness.requests if num_given else ():
                    if other.rank > request.rank and not other.is_finished:
                        self.allowed[other] += num_given
            return flight

        return wrapped

    def _num_blocks(self, request: Request) -> int:
        return 0 if request.tables is None else request.tables.num_blocks * len(request.tables.groups)

    def bound(self, request: Request) -> int:
        num_cleared = sum(other.rank < request.rank for other in self.cleared)
        return (
            self.allowed[request]
            + self.stood_back[request]
            + num_cleared * (1 + self.schedule.harness.head_skips.max_skips)
        )


@pytest.mark.parametrize("num_searches", [2, 3])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_searches_that_lack_rows_for_their_beams_end(policy: PolicySettings, depth: int, num_searches: int) -> None:
    """Each search has one beam that runs, and one in line that it waits for: nobody can go on. The last that runs gives
    way, and must not come back before those that the others wait for."""
    harness = Harness(depth=depth, max_num_seqs=num_searches, max_num_batched_tokens=32, policy=policy)
    for number in range(num_searches):
        standing = {"priority": -number} if policy.name == "priority" else {"tenant": f"tenant-{number}"}
        harness.standing = lambda _, standing=standing: standing  # type: ignore[misc]
        harness.add_beams([number] * 3, Search(width=2, max_tokens=4))
    harness.run(max_steps=200)
    for request in harness.requests:
        harness.check_answer(request)
    assert harness.scheduler.counters.num_preemptions


def _run_watched(seed: int) -> Watch:
    schedule = Schedule(seed)
    del schedule.chances[schedule.preempt]  # whom the test preempts at random, it does so for nobody
    watch = Watch(schedule)
    schedule.run()
    schedule.finish()
    return watch


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_request_ends_and_preemptions_are_bounded(seed: int) -> None:
    """Random pools, budgets, policies, tenants, priorities, arrivals, aborts, faults, and all other mechanisms."""
    watch = _run_watched(seed)
    for request in watch.schedule.harness.requests:
        assert request.is_finished
        assert watch.preempted[request] <= watch.bound(request)


def test_in_those_runs_requests_are_preempted_under_every_policy() -> None:
    """The power check of the test above."""
    happened: Counter[str] = Counter()
    for seed in range(60):
        watch = _run_watched(seed)
        happened[watch.scheduler.config.policy.name] += len(watch.pairs)
        happened["made way"] += len(watch.cleared)
        happened["aborted"] += sum(each.status is Status.ABORTED for each in watch.schedule.harness.requests)
    assert min(happened[name] for name in ("fcfs", "priority", "fair")) > 10, happened
    assert happened["made way"] > 5
    assert happened["aborted"] > 20
