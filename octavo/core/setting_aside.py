"""Requests that leave the line until another is computed: a long prompt, or one that has blocks in common."""

from octavo.core.kv_types import PrefixHit
from octavo.core.lookups import Lookups
from octavo.core.population import Population
from octavo.core.request import Request, Status
from octavo.core.scheduler_types import SchedulerConfig


class SettingAside:
    """Long prompts are in work ``max_long_partial_prefills`` at a time."""

    def __init__(self, config: SchedulerConfig, population: Population, lookups: Lookups) -> None:
        self._max_long = config.prompts.max_long
        self._long_threshold = config.long_threshold
        self._population = population
        self._lookups = lookups

    def is_long(self, num_tokens: int) -> bool:
        """Is a prompt that has so many tokens to compute a long one?"""
        return num_tokens > self._long_threshold

    def most_tokens_now(self) -> int | None:
        """A new prompt of more tokens would be set aside; None: however long, it would not."""
        return self._long_threshold if self._num_may_begin <= 0 else None

    def bring_back(self, step_id: int) -> None:
        """Those get in line again that have waited long enough for a prefix, and of long prompts as many as may
        begin."""
        self._population.prefix_waits.expire(step_id)
        if self._population.held_long:
            for _ in range(self._num_may_begin):
                self._population.release_long()

    def has_to_wait(self, request: Request, hit: PrefixHit, step_id: int) -> bool:
        """For another to be computed."""
        return self._is_held(request, hit) or self._lookups.block_in_work(request, hit, step_id) is not None

    def takes(self, request: Request, hit: PrefixHit, step_id: int) -> bool:
        """One that has to wait leaves the line until then."""
        if self._is_held(request, hit):
            self._population.hold_long(request)
            return True
        block_hash = self._lookups.block_in_work(request, hit, step_id)
        if block_hash is None:
            return False
        self._population.waiting.remove(request)
        self._population.prefix_waits.park(request, block_hash, step_id)
        return True

    @property
    def _num_may_begin(self) -> int:
        """So many more long prompts may be in work."""
        behind = self._population.running.behind
        unfinished = (each for each in behind if each.num_planned_tokens - each.num_computed_tokens > 1)
        return self._max_long - sum(request.is_long for request in unfinished)

    def _is_held(self, request: Request, hit: PrefixHit) -> bool:
        """Must a long prompt wait for another? Not one that was preempted: its client has part of the answer."""
        is_new_and_long = request.status is Status.WAITING and self.is_long(request.num_tokens - hit.num_tokens)
        return is_new_and_long and self._num_may_begin <= 0
