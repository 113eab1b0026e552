"""When admission asks whether a request is likely to have room until it ends, and for how long the answer stands."""

from collections.abc import Sequence
from typing import NamedTuple

from octavo.core.foresight import Foresight
from octavo.core.kv_types import PrefixHit
from octavo.core.lookups import Lookups
from octavo.core.plan_draft import PlanDraft
from octavo.core.population import Population
from octavo.core.request import Request
from octavo.core.scheduler_types import SchedulerConfig
from octavo.core.skipping import Skipping

NUM_WAYS = 8
"""Of those that are passed the first so many are to come in by themselves in time."""


class Refusal(NamedTuple):
    """``request`` was not likely to have room with ``num_free`` blocks beside ``num_running`` others, so it is not with
    fewer blocks beside as many."""

    request: Request | None
    num_free: int
    num_running: int

    def covers(self, request: Request, num_free: int, num_running: int) -> bool:
        return self.request is request and num_free <= self.num_free and num_running >= self.num_running


class LookingAhead:
    """Asks ``Foresight``, where the answer counts."""

    def __init__(self, config: SchedulerConfig, population: Population, lookups: Lookups, skipping: Skipping) -> None:
        self._pool = population.kv.pool
        self._running = population.running
        self._waiting = population.waiting
        self._ordering = population.ordering
        self._lookups = lookups
        self._skipping = skipping
        self._foresight = Foresight(config.admission_quantile, population)
        self._last_refusal = Refusal(None, 0, 0)

    def will_fit(self, request: Request, hit: PrefixHit, draft: PlanDraft) -> bool:
        """Is it likely to have room until it ends, and those that run beside it? Asked again only once more blocks are
        free. What waits while nothing runs, or is overdue, or has had others give way or could have, is not held up for
        what may come."""
        if draft.is_empty or draft.is_for_one or self._skipping.is_overdue(request, draft.step_id):
            return True
        if self._ordering.givers(request, self._running):
            return True
        num_free, num_running = self._num_free(draft), len(self._running)
        if self._last_refusal.covers(request, num_free, num_running):
            return False
        will_fit = self._foresight.fits(request, hit, num_free)
        if not will_fit and request is self._waiting.peek():
            self._last_refusal = Refusal(request, num_free, num_running)
        return will_fit

    def most_tokens_now(self, num_tokens: int, max_total: int, num_free: int) -> int:
        """Of new prompts of up to ``num_tokens``, whose sequences may grow to ``max_total``, the longest that
        ``will_fit`` would let in where ``num_free`` blocks are owed to nobody."""
        return self._foresight.most_tokens(num_tokens, max_total, num_free) if self._running else num_tokens

    def leaves_way(self, request: Request, hit: PrefixHit, skipped: Sequence[Request], draft: PlanDraft) -> bool:
        """Are those that it passes likely to come in before their turn is overdue, so that nobody has to give way?"""
        wanted = (
            (self._lookups.num_taken(each), self._skipping.num_steps_left(each, draft.step_id))
            for each in skipped[:NUM_WAYS]
        )
        return self._foresight.leaves_way(request, hit, self._num_free(draft), wanted)

    def _num_free(self, draft: PlanDraft) -> int:
        """Blocks that are owed to nobody."""
        return self._pool.num_free - draft.num_owed_blocks
