"""Random schedules of all mechanisms together, in which steps take time and prompts have bounds: whatever is measured,
no row of an answer is left out for the sake of prompts, and every request ends."""

from collections import Counter
from math import inf
from random import Random
from typing import Any

import pytest

from octavo.core.plan_draft import PlanDraft
from octavo.core.request import Request, Status
from octavo.core.scheduler_types import PromptBounds
from octavo.core.step import StepPlan
from tests.support.schedules import Schedule

NUM_SEEDS_ALWAYS = 40


class TimedSchedule(Schedule):
    """The engine's clock goes by tokens at one cost for all of a run, or jumps as it likes."""

    def __init__(self, seed: int) -> None:
        self.clock = clock = Random(f"clock {seed}")
        bounds = PromptBounds(
            max_long=clock.choice([1, 1, 2, 5]),
            long_threshold=clock.choice([None, 1, 2, 4, 8, 30]),
            target_seconds=clock.choice([None, None, 1e-6, 0.01, 0.05, 10.0]),
        )
        super().__init__(seed, prompts=bounds)
        self.seconds_per_token = clock.choice([0.0, 1e-6, 1e-3, 1.0])
        self.jumps = clock.choice([0.0, 0.5])
        self.draft = PlanDraft(0, 0, None)
        self.num_rows_checked = self.num_held_back = self.num_held_long = 0
        harness, planner = self.harness, self.harness.scheduler._planner
        self._plan, self._land, self._clear_way = harness.plan, harness.land, planner.admission.clear_way
        wrapped: Any = harness
        wrapped.plan, wrapped.land = self._plan_all_rows, self._land_after_a_while
        wrapped = planner.admission
        wrapped.clear_way = self._note_draft

    def _note_draft(self, draft: PlanDraft) -> None:
        self._clear_way(draft)
        self.draft = draft

    def _plan_all_rows(self) -> bool:
        """Whoever lacks one token, and has a place for it, has it in this step, or gave way to another."""
        scheduler = self.harness.scheduler
        positions = {each: each.num_computed_tokens for each in scheduler.running if _waits_for_a_token(each)}
        is_planned = self._plan()
        if is_planned and not scheduler._suspects:
            self.num_held_back += self.draft.chunks._seconds < inf
            self.num_held_long += bool(scheduler.population.held_long)
            for request, position in positions.items():
                if request.status is Status.RUNNING and request not in self.draft.withheld:
                    assert request.tables is not None
                    has_place = request.tables.capacity > position
                    assert request in scheduler.last_planned or not has_place, "a row was left out"
                    self.num_rows_checked += 1
        return is_planned

    def _land_after_a_while(self) -> bool:
        flights = self.harness.scheduler._flights
        plan = flights[0].plan if flights else None
        has_landed = self._land()
        if plan is not None:
            self.harness.scheduler.pace.note(plan, self._seconds(plan))
        return has_landed

    def _seconds(self, plan: StepPlan) -> float:
        if self.clock.random() < self.jumps:
            jump = self.clock.choice([-1.0, 0.0, 1e-9, 0.001, 3600.0])
            return jump * (1 + plan.num_tokens * self.clock.choice([0, 1]))
        return 0.01 + plan.num_tokens * self.seconds_per_token


def _waits_for_a_token(request: Request) -> bool:
    return request.num_planned_tokens - request.num_computed_tokens == 1 and request.may_be_planned


@pytest.mark.parametrize(
    "seed",
    [
        *range(NUM_SEEDS_ALWAYS),
        *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(NUM_SEEDS_ALWAYS, 600)),
    ],
)
def test_all_mechanisms_on_a_clock(seed: int) -> None:
    schedule = TimedSchedule(seed)
    schedule.run()
    schedule.finish()


def test_in_those_runs_rows_wait_beside_prompts() -> None:
    """The power check of the test above: prompts are held back by the clock, and long ones by each other."""
    happened: Counter[str] = Counter()
    for seed in range(NUM_SEEDS_ALWAYS):
        schedule = TimedSchedule(seed)
        schedule.run()
        happened["rows"] += schedule.num_rows_checked
        happened["held back"] += schedule.num_held_back
        happened["held long"] += schedule.num_held_long
    assert happened["rows"] > 1000, happened
    assert min(happened.values()) > 100, happened
