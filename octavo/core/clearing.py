"""For whom others go back to the line, and who they are."""

from collections.abc import Sequence

from octavo.core import policy
from octavo.core.lookups import Lookups
from octavo.core.plan_draft import PlanDraft
from octavo.core.population import Population
from octavo.core.request import Request, Status
from octavo.core.room import Room
from octavo.core.setting_aside import SettingAside
from octavo.core.skipping import Skipping


class Clearing:
    """Lets running requests give way to the first in line, where its turn is overdue or the policy says so."""

    def __init__(
        self, population: Population, lookups: Lookups, room: Room, setting_aside: SettingAside, skipping: Skipping
    ) -> None:
        self._population = population
        self._waiting = population.waiting
        self._running = population.running
        self._ordering = population.ordering
        self._lookups = lookups
        self._room = room
        self._setting_aside = setting_aside
        self._skipping = skipping

    def clear_way(self, draft: PlanDraft) -> None:
        """Where the first in line would fit without those that have to give way to it, these go back in line, as many
        as need be, and it is to come in their place. Those that a step in flight computes are left out of this step,
        and go in the next.

        All of them come after it in rank, so this is preemption like any other: nobody takes turns."""
        first = self._waiting.peek()
        givers = self._givers(first, draft.step_id) if first is not None else ()
        if first is None or not givers:
            return
        hit = self._lookups.find(first)
        is_blocked = not self._room.fits_now(first, hit) and self._room.would_fit(first, hit, givers)
        if not is_blocked or self._setting_aside.has_to_wait(first, hit, draft.step_id):
            return
        draft.is_for_one = True
        self._waiting.hasten(first)
        draft.withheld.update(request for request in givers if request.num_in_flight)
        while not self._room.fits_now(first, hit):
            idle = (giver for giver in givers if giver.status is Status.RUNNING and not giver.num_in_flight)
            victim = policy.least_work_lost(idle, self._population.loss_of)
            if victim is None:
                return
            self._population.preempt(victim, first)

    def _givers(self, first: Request, step_id: int) -> Sequence[Request]:
        """Who gives way to the first in line: all after it in rank, where its turn is overdue, else those that the
        policy says."""
        if self._skipping.is_overdue(first, step_id):
            return self._running.after(first)
        return self._ordering.givers(first, self._running)
