"""Whether a request has room now: a row, and blocks beside what running ones need for the tokens they have."""

from collections.abc import Sequence

from octavo.core import policy
from octavo.core.kv_types import PrefixHit
from octavo.core.plan_draft import PlanDraft
from octavo.core.population import Population
from octavo.core.request import Request
from octavo.core.scheduler_types import SchedulerConfig

PASSING_RESERVES = 4
"""Times the growth that others have to leave free, a request that passes another has to: it has the least work to lose,
so it would be the first to give its blocks back. With less more are preempted, with more less memory is filled
(docs/benchmarks.md). Where admission looks ahead, that says better what they will need, and one reserve is left."""


class Room:
    """Some growth of the running requests is kept back (``policy.growth_reserve``)."""

    def __init__(self, config: SchedulerConfig, population: Population) -> None:
        self._max_num_seqs = config.max_num_seqs
        self._passing_reserves = 1 if config.admission_quantile else PASSING_RESERVES
        self._population = population
        self._kv = population.kv
        self._running = population.running

    @property
    def has_row(self) -> bool:
        return len(self._running) < self._max_num_seqs

    def fitting(self, request: Request, hit: PrefixHit, draft: PlanDraft) -> PrefixHit | None:
        """The most of ``hit`` with which the request fits into this step. None: it does not."""
        return self._most_of(hit, request.num_tokens, self._spare(draft, 1))

    def fitting_to_pass(self, request: Request, hit: PrefixHit, draft: PlanDraft) -> PrefixHit | None:
        """The same of a request that passes others."""
        return self._most_of(hit, request.num_tokens, self._spare(draft, self._passing_reserves))

    def num_to_pass(self, draft: PlanDraft) -> int:
        """Blocks for requests that pass others."""
        return self._kv.pool.num_free - self._spare(draft, self._passing_reserves)

    def num_now(self) -> int:
        """Blocks that are free for a request which comes first in the next step, should there be a row."""
        reserve = policy.growth_reserve(len(self._running), self._kv.config.num_blocks)
        return max(0, self.num_owed_to_nobody() - reserve)

    def num_owed_to_nobody(self) -> int:
        """Free blocks but for those that running requests lack for the tokens they have, or take for their next one,
        and copies of what they share."""
        due = self._running.batch.due_for_plan()
        num_growing = len(set(due.at_boundary).difference(due.at_end)) * self._kv.config.num_groups
        behind = self._running.behind
        owed = sum(map(self._num_owed_next, behind))
        copies = self._kv.num_due_copies(request.tables for request in behind if request.tables is not None)
        return self._kv.pool.num_free - num_growing - owed - copies

    def _num_owed_next(self, request: Request) -> int:
        """Blocks that one which is behind lacks for the tokens that it has when the next step is planned."""
        assert request.tables is not None
        num_tokens = request.num_planned_tokens
        draws = num_tokens - request.num_computed_tokens == 1 and num_tokens < request.max_total_tokens
        return self._kv.num_owed_blocks(request.tables, num_tokens + draws)

    def fits_now(self, request: Request, hit: PrefixHit) -> bool:
        """Does it fit, before anything of this step is planned?"""
        return self.has_row and self._most_of(hit, request.num_tokens, self._spare_beside(())) is not None

    def would_fit(self, request: Request, hit: PrefixHit, without: Sequence[Request]) -> bool:
        """Would it, if those were gone?"""
        tables = [other.tables for other in without if other.tables is not None]
        spare = self._spare_beside(without) - self._kv.num_freed_by(tables, hit)
        return self._most_of(hit, request.num_tokens, spare) is not None

    def _most_of(self, hit: PrefixHit, num_tokens: int, spare: int) -> PrefixHit | None:
        """The most of ``hit`` with which ``num_tokens`` fit and leave ``spare`` blocks: to copy from a block takes one
        more."""
        hits = (hit, hit.without_tail(self._kv.config.block_size)) if hit.tail_ids else (hit,)
        return next((each for each in hits if self._kv.can_hold(each, num_tokens, spare)), None)

    def _spare(self, draft: PlanDraft, num_reserves: int) -> int:
        """Blocks to leave free in this step: what is owed, and for growth. Where nothing else runs, nothing grows."""
        reserve = policy.growth_reserve(len(self._running), self._kv.config.num_blocks)
        return draft.num_owed_blocks + (0 if draft.is_empty else num_reserves * reserve)

    def _spare_beside(self, without: Sequence[Request]) -> int:
        """Blocks to leave to the running requests but those: what they lack for the tokens they have, and growth."""
        owed = sum(self._population.num_owed_blocks(each) for each in self._running.behind if each not in without)
        return owed + policy.growth_reserve(len(self._running) - len(without), self._kv.config.num_blocks)
