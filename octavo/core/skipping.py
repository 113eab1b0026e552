"""How often, and for how long, a request that does not fit may be passed in line by later ones that do."""

from collections.abc import Iterable, Sequence

from octavo.core.ordering import Ordering
from octavo.core.request import Request, Status
from octavo.core.scheduler_types import SkipBounds


class Skipping:
    """Who may be passed, and by how many. A preempted request never is: its client has part of the answer and waits for
    the rest."""

    def __init__(self, bounds: SkipBounds, ordering: Ordering) -> None:
        self._bounds = bounds
        self._ordering = ordering
        self._now = 0.0

    def tell_time(self, now: float) -> None:
        """``now``: seconds, on a clock of the caller's."""
        self._now = now

    def may_pass(self, skipped: Sequence[Request], step_id: int) -> bool:
        """May one more request pass all of these?"""
        return all(self._may_be_passed(request, step_id) for request in skipped)

    def num_steps_left(self, request: Request, step_id: int) -> int:
        """Steps until the turn of a request is overdue that has been passed or is about to be, if they take as long as
        those since it first was."""
        if request.first_skip is None:
            return self._bounds.max_steps
        first_step, first_time = request.first_skip
        num_steps, seconds = step_id - first_step, self._now - first_time
        num_left = self._bounds.max_steps - num_steps
        if seconds <= 0:
            return num_left
        return min(num_left, int((self._bounds.max_seconds - seconds) / seconds * num_steps))

    def note(self, skipped: Iterable[Request], step_id: int) -> None:
        """One more request passes all of these in step ``step_id``: whatever their order was, they come before it from
        now on."""
        for request in skipped:
            self._ordering.take_up(request)
            request.num_skips += 1
            request.first_skip = request.first_skip or (step_id, self._now)

    def is_overdue(self, request: Request, step_id: int) -> bool:
        """Has it been passed, and waited its time since?"""
        if request.first_skip is None or request.status is not Status.WAITING:
            return False
        first_step, first_time = request.first_skip
        return step_id - first_step >= self._bounds.max_steps or self._now - first_time >= self._bounds.max_seconds

    def _may_be_passed(self, request: Request, step_id: int) -> bool:
        is_new, has_skips = request.status is Status.WAITING, request.num_skips < self._bounds.max_skips
        return is_new and has_skips and not self.is_overdue(request, step_id)
