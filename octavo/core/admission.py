"""Who comes in from the line."""

from collections.abc import Iterator
from typing import NamedTuple

from octavo.core.cache_order import CacheOrder
from octavo.core.clearing import Clearing
from octavo.core.kv_types import PrefixHit
from octavo.core.looking_ahead import LookingAhead
from octavo.core.lookups import Lookups
from octavo.core.plan_draft import PlanDraft
from octavo.core.population import Population
from octavo.core.request import Request
from octavo.core.room import Room
from octavo.core.scheduler_types import SchedulerConfig
from octavo.core.setting_aside import SettingAside
from octavo.core.skipping import Skipping

LOOKAHEAD = 16
"""How many requests that do not fit a step looks past: each costs a look into the prefix cache."""


class Offer(NamedTuple):
    """Room for ``room`` blocks of which nobody behind ``first`` could make use, as the line was after ``num_pushed``
    arrivals. To look again before there is more, or somebody new, would find nobody: what a step costs follows what
    changes."""

    first: Request | None
    num_pushed: int
    room: int

    def covers(self, first: Request, num_pushed: int, room: int) -> bool:
        return self.first is first and self.num_pushed == num_pushed and room <= self.room


NO_OFFER = Offer(None, 0, 0)


class Admission:
    """In the order of the policy, but for the bounded skipping of requests that do not fit (see ``Skipping``).

    A request is admitted only where all it has so far will fit beside what running ones have (``Room``), and where it
    is likely to have room until it ends (``LookingAhead``); one that passes another leaves time for that one to come
    in.
    """

    def __init__(self, config: SchedulerConfig, population: Population) -> None:
        self._config = config
        self._kv = population.kv
        self._running = population.running
        self._waiting = population.waiting
        self._ordering = population.ordering
        self._skipping = Skipping(config.head_skips, population.ordering)
        self._lookups = Lookups(population.kv, population.prefix_waits)
        self._room = Room(config, population)
        self._setting_aside = SettingAside(config, population, self._lookups)
        self._looking_ahead = LookingAhead(config, population, self._lookups, self._skipping)
        self._cache_order = CacheOrder(
            population, self._lookups, self._room, self._setting_aside, self._looking_ahead, self._skipping
        )
        clearing = Clearing(population, self._lookups, self._room, self._setting_aside, self._skipping)
        self.clear_way = clearing.clear_way
        self.is_long = self._setting_aside.is_long
        self._last_offer = NO_OFFER

    def tell_time(self, now: float) -> None:
        """``now``: seconds, on a clock of the caller's. Without it, turns are overdue by their steps alone."""
        self._skipping.tell_time(now)

    def num_blocks_now(self) -> int:
        """Blocks that a request could get which comes now and is first in line, should there be a row for it."""
        return self._room.num_now()

    def most_tokens_now(self, longest: int) -> int:
        """The longest prompt, nothing of it cached, that would be admitted in the next step if it came now and was
        first in line; its sequence may grow to ``longest``, the most that there can be. 0: none."""
        num_blocks = self._room.num_now() if self._room.has_row else 0
        num_tokens = min(longest - 1, self._kv.config.num_tokens_in(num_blocks))
        bound = self._setting_aside.most_tokens_now()
        if bound is not None:
            num_tokens = min(num_tokens, bound)
        return self._looking_ahead.most_tokens_now(num_tokens, longest, self._room.num_owed_to_nobody())

    def candidates(self, draft: PlanDraft) -> Iterator[tuple[Request, PrefixHit]]:
        """Requests to start in this step while tokens, rows and blocks last, each with what is cached of it. Each has
        to be started before the next is asked for."""
        self._setting_aside.bring_back(draft.step_id)
        if self._waiting:
            self._ordering.catch_up(self._running)
        while self._has_budget(draft) and (request := self._waiting.peek()) is not None:
            hit = self._lookups.find(request)
            if self._setting_aside.takes(request, hit, draft.step_id):
                continue
            fitting = self._room.fitting(request, hit, draft)
            if fitting is None or not self._looking_ahead.will_fit(request, fitting, draft):
                if draft.is_for_one:
                    return
                yield from self._candidates_after(request, draft)
                return
            yield self._cache_order.choose(request, fitting, draft)

    def _candidates_after(self, first: Request, draft: PlanDraft) -> Iterator[tuple[Request, PrefixHit]]:
        """Those behind the first in line, which does not fit, that do fit and may pass all that do not."""
        if self._last_offer.covers(first, self._waiting.num_pushed, self._room.num_to_pass(draft)):
            return
        self._last_offer = NO_OFFER
        skipped = [first]
        for request in self._waiting.following(first, LOOKAHEAD + self._config.max_num_seqs):
            may_pass = self._ordering.may_pass(request) and self._skipping.may_pass(skipped, draft.step_id)
            if len(skipped) > LOOKAHEAD or not may_pass:
                break
            if not self._has_budget(draft):
                return
            hit = self._lookups.find(request)
            if self._setting_aside.takes(request, hit, draft.step_id):
                continue
            fitting = self._room.fitting_to_pass(request, hit, draft)
            if (
                fitting is None
                or not self._looking_ahead.will_fit(request, fitting, draft)
                or not self._looking_ahead.leaves_way(request, fitting, skipped, draft)
            ):
                skipped.append(request)
            else:
                self._skipping.note(skipped, draft.step_id)
                yield request, fitting
        self._last_offer = Offer(first, self._waiting.num_pushed, self._room.num_to_pass(draft))

    def _has_budget(self, draft: PlanDraft) -> bool:
        return draft.chunks.is_open and self._room.has_row
