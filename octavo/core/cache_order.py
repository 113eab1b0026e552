"""Of requests of equal standing those go first whose prefix is in a full cache, before it is pushed out."""

from octavo.core.kv_types import PrefixHit
from octavo.core.looking_ahead import LookingAhead
from octavo.core.lookups import Lookups
from octavo.core.plan_draft import PlanDraft
from octavo.core.population import Population
from octavo.core.request import Request
from octavo.core.room import Room
from octavo.core.setting_aside import SettingAside
from octavo.core.skipping import Skipping

CACHE_WINDOW = 8
"""How many requests behind the first are looked up in the prefix cache where it is full: each look costs about as much
as one at the first."""


class CacheOrder:
    """To go before others is to pass them, within the same bounds."""

    def __init__(
        self,
        population: Population,
        lookups: Lookups,
        room: Room,
        setting_aside: SettingAside,
        looking_ahead: LookingAhead,
        skipping: Skipping,
    ) -> None:
        self._kv = population.kv
        self._waiting = population.waiting
        self._ordering = population.ordering
        self._lookups = lookups
        self._room = room
        self._setting_aside = setting_aside
        self._looking_ahead = looking_ahead
        self._skipping = skipping

    def choose(self, first: Request, hit: PrefixHit, draft: PlanDraft) -> tuple[Request, PrefixHit]:
        """The first in line, which fits, or one of equal standing soon after it of whose prefix more is cached, if the
        blocks that the first takes are those of cached prefixes: what is there may be gone when its turn comes."""
        if draft.is_for_one or not self._evicts(first, hit):
            return first, hit
        passed, best, best_hit, num_passed = [first], first, hit, 0
        for request in self._waiting.following(first, CACHE_WINDOW):
            is_equal = self._ordering.are_equal(first, request)
            # Those before the last were looked at when the one after them was.
            if not is_equal or not self._skipping.may_pass(passed[-1:], draft.step_id):
                break
            fitting = self._fitting_more(request, best_hit.num_tokens + self._kv.config.block_size, draft)
            if fitting is not None:
                best, best_hit, num_passed = request, fitting, len(passed)
            passed.append(request)
        self._skipping.note(passed[:num_passed], draft.step_id)
        return best, best_hit

    def _fitting_more(self, request: Request, num_tokens: int, draft: PlanDraft) -> PrefixHit | None:
        """What the request may come in with, if at least ``num_tokens`` of it are cached; None: it may not."""
        if not self._lookups.may_find(request, num_tokens):
            return None
        hit = self._lookups.find(request)
        if hit.num_tokens < num_tokens:
            return None
        fitting = self._room.fitting(request, hit, draft)
        if fitting is None or self._setting_aside.has_to_wait(request, hit, draft.step_id):
            return None
        return fitting if self._looking_ahead.will_fit(request, fitting, draft) else None

    def _evicts(self, request: Request, hit: PrefixHit) -> bool:
        """Are there too few blocks that hold nothing for what a request lacks?"""
        num_empty = self._kv.pool.num_free - self._kv.pool.num_cached
        num_new = self._kv.num_blocks_for(request.num_tokens) - hit.num_device_blocks * self._kv.config.num_groups
        return self._kv.config.enable_prefix_caching and num_new > num_empty
