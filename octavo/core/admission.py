"""Who comes in from the line, and for whom others go back to it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from octavo.core import policy
from octavo.core.foresight import Foresight
from octavo.core.kv_types import PrefixHit
from octavo.core.plan_draft import PlanDraft
from octavo.core.population import Population
from octavo.core.request import Request, Status
from octavo.core.scheduler_types import SchedulerConfig
from octavo.core.skipping import Skipping

LOOKAHEAD = 16
"""How many requests that do not fit a step looks past: each costs a look into the prefix cache."""

CACHE_WINDOW = 8
"""How many requests behind the first are looked up in the prefix cache where it is full: each look costs about as much
as one at the first."""

PASSING_RESERVES = 4
"""Times the growth that others have to leave free, a request that passes another has to: it has the least work to lose,
so it would be the first to give its blocks back. With less more are preempted, with more less memory is filled
(docs/benchmarks.md). Where admission looks ahead, that says better what they will need, and one reserve is left."""

NUM_WAYS = 8
"""Of those that are passed the first so many are to come in by themselves in time."""


class Offer(NamedTuple):
    """Room for ``room`` blocks of which nobody behind ``first`` could make use, as the line was after ``num_pushed``
    arrivals. To look again before there is more, or somebody new, would find nobody: what a step costs follows what
    changes."""

    first: Request | None
    num_pushed: int
    room: int

    def covers(self, first: Request, num_pushed: int, room: int) -> bool:
        return self.first is first and self.num_pushed == num_pushed and room <= self.room


class Refusal(NamedTuple):
    """``request`` was not likely to have room with ``num_free`` blocks beside ``num_running`` others, so it is not with
    fewer blocks beside as many."""

    request: Request | None
    num_free: int
    num_running: int

    def covers(self, request: Request, num_free: int, num_running: int) -> bool:
        return self.request is request and num_free <= self.num_free and num_running >= self.num_running


NO_OFFER = Offer(None, 0, 0)
NO_REFUSAL = Refusal(None, 0, 0)


class Admission:
    """In the order of the policy, but for the bounded skipping of requests that do not fit (see ``Skipping``).

    A request is admitted only where all it has so far will fit beside what running ones have, with some growth kept
    back, and where it is likely to have room until it ends (``Foresight``); one that passes another leaves more
    (``PASSING_RESERVES``), and time for that one to come in.
    """

    def __init__(self, config: SchedulerConfig, population: Population) -> None:
        self._config = config
        self._population = population
        self._kv = population.kv
        self._running = population.running
        self._waiting = population.waiting
        self._ordering = population.ordering
        self._skipping = Skipping(config.head_skips)
        self._foresight = Foresight(config.admission_quantile, population)
        self._passing_reserves = 1 if config.admission_quantile else PASSING_RESERVES
        self._last_offer = NO_OFFER
        self._last_refusal = NO_REFUSAL

    def tell_time(self, now: float) -> None:
        """``now``: seconds, on a clock of the caller's. Without it, turns are overdue by their steps alone."""
        self._skipping.tell_time(now)

    def candidates(self, draft: PlanDraft) -> Iterator[tuple[Request, PrefixHit]]:
        """Requests to start in this step while tokens, rows and blocks last, each with what is cached of it. Each has
        to be started before the next is asked for."""
        self._population.prefix_waits.expire(draft.step_id)
        if self._population.held_long and self._may_begin_long:
            self._population.release_long()
        if self._waiting:
            self._ordering.catch_up(self._running)
        while self._has_budget(draft) and (request := self._waiting.peek()) is not None:
            hit = self._lookup(request)
            if self._sets_aside(request, hit, draft.step_id):
                continue
            fitting = self._fitting(hit, request.num_tokens, self._spare(draft, 1))
            if fitting is None or not self._will_fit(request, fitting, draft):
                if draft.is_for_one:
                    return
                yield from self._candidates_after(request, draft)
                return
            yield self._or_one_that_is_cached(request, fitting, draft)

    def _or_one_that_is_cached(self, first: Request, hit: PrefixHit, draft: PlanDraft) -> tuple[Request, PrefixHit]:
        """The first in line, which fits, or one of equal standing soon after it of whose prefix more is cached, if the
        blocks that the first takes are those of cached prefixes: what is there may be gone when its turn comes.

        To go before others is to pass them, within the same bounds."""
        if draft.is_for_one or not self._evicts(first, hit):
            return first, hit
        passed, best, best_hit, num_passed = [first], first, hit, 0
        for request in self._waiting.following(first, CACHE_WINDOW):
            is_equal = self._ordering.are_equal(first, request)
            if not is_equal or not self._skipping.may_pass(passed, draft.step_id):
                break
            found = self._lookup(request)
            if found.num_tokens >= best_hit.num_tokens + self._kv.config.block_size:
                fitting = self._fitting(found, request.num_tokens, self._spare(draft, 1))
                has_to_wait = self._has_to_wait(request, found, draft.step_id)
                if fitting is not None and not has_to_wait and self._will_fit(request, fitting, draft):
                    best, best_hit, num_passed = request, fitting, len(passed)
            passed.append(request)
        self._note_passed(passed[:num_passed], draft)
        return best, best_hit

    def _evicts(self, request: Request, hit: PrefixHit) -> bool:
        """Are there too few blocks that hold nothing for what a request lacks?"""
        num_empty = self._kv.pool.num_free - self._kv.pool.num_cached
        num_new = self._kv.num_blocks_for(request.num_tokens) - hit.num_device_blocks * self._kv.config.num_groups
        return self._kv.config.enable_prefix_caching and num_new > num_empty

    def _candidates_after(self, first: Request, draft: PlanDraft) -> Iterator[tuple[Request, PrefixHit]]:
        """Those behind the first in line, which does not fit, that do fit and may pass all that do not."""
        if self._last_offer.covers(first, self._waiting.num_pushed, self._room(draft)):
            return
        self._last_offer = NO_OFFER
        skipped = [first]
        for request in self._waiting.following(first, LOOKAHEAD + self._config.max_num_seqs):
            may_pass = self._ordering.may_pass(request) and self._skipping.may_pass(skipped, draft.step_id)
            if len(skipped) > LOOKAHEAD or not may_pass:
                break
            if not self._has_budget(draft):
                return
            hit = self._lookup(request)
            if self._sets_aside(request, hit, draft.step_id):
                continue
            fitting = self._fitting(hit, request.num_tokens, self._spare(draft, self._passing_reserves))
            if (
                fitting is None
                or not self._will_fit(request, fitting, draft)
                or not self._leaves_way(request, fitting, skipped, draft)
            ):
                skipped.append(request)
            else:
                self._note_passed(skipped, draft)
                yield request, fitting
        self._last_offer = Offer(first, self._waiting.num_pushed, self._room(draft))

    def _note_passed(self, passed: Sequence[Request], draft: PlanDraft) -> None:
        """One more request passes all of these: whatever their order was, they come before it from now on."""
        for request in passed:
            self._ordering.take_up(request)
        self._skipping.note(passed, draft.step_id)

    def _will_fit(self, request: Request, hit: PrefixHit, draft: PlanDraft) -> bool:
        """Is it likely to have room until it ends, and those that run beside it? Asked again only once more blocks are
        free. What waits while nothing runs, or is overdue, or has had others give way or could have, is not held up for
        what may come."""
        if draft.is_empty or draft.is_for_one or self._skipping.is_overdue(request, draft.step_id):
            return True
        if self._ordering.givers(request, self._running):
            return True
        num_free, num_running = self._kv.pool.num_free - draft.num_owed_blocks, len(self._running)
        if self._last_refusal.covers(request, num_free, num_running):
            return False
        will_fit = self._foresight.fits(request, hit, num_free)
        if not will_fit and request is self._waiting.peek():
            self._last_refusal = Refusal(request, num_free, num_running)
        return will_fit

    def _leaves_way(self, request: Request, hit: PrefixHit, skipped: Sequence[Request], draft: PlanDraft) -> bool:
        """Are those that it passes likely to come in before their turn is overdue, so that nobody has to give way?"""
        num_free = self._kv.pool.num_free - draft.num_owed_blocks
        wanted = (
            (
                self._kv.num_taken(self._lookup(each), each.num_tokens),
                self._skipping.num_steps_left(each, draft.step_id),
            )
            for each in skipped[:NUM_WAYS]
        )
        return self._foresight.leaves_way(request, hit, num_free, wanted)

    def clear_way(self, draft: PlanDraft) -> None:
        """Where the first in line would fit without those that have to give way to it, these go back in line, as many
        as need be, and it is to come in their place. Those that a step in flight computes are left out of this step,
        and go in the next.

        All of them come after it in rank, so this is preemption like any other: nobody takes turns."""
        first = self._waiting.peek()
        givers = self._givers(first, draft.step_id) if first is not None else ()
        if first is None or not givers:
            return
        hit = self._lookup(first)
        is_blocked = not self._fits_now(first, hit) and self._would_fit(first, hit, givers)
        if not is_blocked or self._has_to_wait(first, hit, draft.step_id):
            return
        draft.is_for_one = True
        self._waiting.hasten(first)
        draft.withheld.update(request for request in givers if request.num_in_flight)
        while not self._fits_now(first, hit):
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

    def _has_budget(self, draft: PlanDraft) -> bool:
        return draft.chunks.is_open and self._has_row

    def is_long(self, num_tokens: int) -> bool:
        """Is a prompt that has so many tokens to compute a long one?"""
        return num_tokens > self._config.long_threshold

    @property
    def _may_begin_long(self) -> bool:
        """Are fewer long prompts in work than may be?"""
        unfinished = (each for each in self._running.behind if each.num_planned_tokens - each.num_computed_tokens > 1)
        return sum(request.is_long for request in unfinished) < self._config.prompts.max_long

    def _is_held(self, request: Request, hit: PrefixHit) -> bool:
        """Must a long prompt wait for another? Not one that was preempted: its client has part of the answer."""
        is_new_and_long = request.status is Status.WAITING and self.is_long(request.num_tokens - hit.num_tokens)
        return is_new_and_long and not self._may_begin_long

    def _has_to_wait(self, request: Request, hit: PrefixHit, step_id: int) -> bool:
        """For another to be computed: a long prompt, or one that has a block in common."""
        return self._is_held(request, hit) or self._block_in_work(request, hit, step_id) is not None

    def _sets_aside(self, request: Request, hit: PrefixHit, step_id: int) -> bool:
        """One that has to wait so leaves the line until then."""
        if self._is_held(request, hit):
            self._population.hold_long(request)
            return True
        block_hash = self._block_in_work(request, hit, step_id)
        if block_hash is None:
            return False
        self._waiting.remove(request)
        self._population.prefix_waits.park(request, block_hash, step_id)
        return True

    def _spare(self, draft: PlanDraft, num_reserves: int) -> int:
        """Blocks to leave free in this step: what is owed, and for growth. Where nothing else runs, nothing grows."""
        reserve = policy.growth_reserve(len(self._running), self._kv.config.num_blocks)
        return draft.num_owed_blocks + (0 if draft.is_empty else num_reserves * reserve)

    def _room(self, draft: PlanDraft) -> int:
        return self._kv.pool.num_free - self._spare(draft, self._passing_reserves)

    @property
    def _has_row(self) -> bool:
        return len(self._running) < self._config.max_num_seqs

    def _fits_now(self, request: Request, hit: PrefixHit) -> bool:
        return self._has_row and self._fitting(hit, request.num_tokens, self._spare_beside(())) is not None

    def _would_fit(self, request: Request, hit: PrefixHit, without: Sequence[Request]) -> bool:
        """Would it, if those were gone?"""
        tables = [other.tables for other in without if other.tables is not None]
        spare = self._spare_beside(without) - self._kv.num_freed_by(tables, hit)
        return self._fitting(hit, request.num_tokens, spare) is not None

    def _spare_beside(self, without: Sequence[Request]) -> int:
        """Blocks to leave to the running requests but those: what they lack for the tokens they have, and growth."""
        owed = sum(self._population.num_owed_blocks(each) for each in self._running.behind if each not in without)
        return owed + policy.growth_reserve(len(self._running) - len(without), self._kv.config.num_blocks)

    def _fitting(self, hit: PrefixHit, num_tokens: int, spare: int) -> PrefixHit | None:
        """The most of ``hit`` with which ``num_tokens`` fit and leave ``spare`` blocks: to copy from a block takes one
        more. None: they do not."""
        hits = (hit, hit.without_tail(self._kv.config.block_size)) if hit.tail_ids else (hit,)
        return next((each for each in hits if self._kv.can_hold(each, num_tokens, spare)), None)

    def _lookup(self, request: Request) -> PrefixHit:
        if self._kv.config.enable_prefix_caching:
            self._kv.hasher.extend(request.chain, request.token_ids, request.num_tokens)
        reads = request.chain if self._reads_cache(request) else None
        return self._kv.lookup_prefix(reads, request.token_ids, request.swapped)

    def _reads_cache(self, request: Request) -> bool:
        return self._kv.config.enable_prefix_caching and request.may_read_cache

    def _block_in_work(self, request: Request, hit: PrefixHit, step_id: int) -> bytes | None:
        """Hash of a block that another is computing and that would bring the request further than its hit: the very
        next one, or one that shares more of its leading tokens."""
        prefix_waits, size = self._population.prefix_waits, self._kv.config.block_size
        if not self._reads_cache(request) or not prefix_waits.may_wait(request, step_id):
            return None
        index, num_tail_tokens = divmod(hit.num_tokens, size)
        hashes = request.chain.hashes[: (request.num_tokens - 1) // size]
        if prefix_waits.is_awaited(hashes[index : index + 1]):
            return hashes[index]
        match = prefix_waits.nearest(request, index, size)
        gain = match.num_tokens - num_tail_tokens if match else 0
        # A few tokens that all prompts begin with are not worth a step.
        return match.block_hash if match and gain >= (1 if index else max(1, size // 4)) else None
