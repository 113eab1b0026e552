"""Every request the scheduler knows, each in exactly one place, and what a change of place does to rows, blocks and
those who wait. Decides nothing."""

from collections.abc import Iterable
from itertools import chain

from octavo.core import policy
from octavo.core.fair_shares import FairShares
from octavo.core.families import Families
from octavo.core.hashing import HashChain, pack_tokens
from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import PrefixHit
from octavo.core.ordering import ByPriority, Fcfs, Ordering
from octavo.core.output_lengths import OutputLengths
from octavo.core.prefix_wait import PrefixWaits
from octavo.core.publication import Publisher
from octavo.core.queue import RequestQueue
from octavo.core.request import NEVER, Request, Status
from octavo.core.running import RunningSet
from octavo.core.scheduler_types import (
    PolicySettings,
    Preemption,
    PreemptionCosts,
    SchedulerConfig,
    SchedulerCounters,
)
from octavo.core.step import BlockCopy
from octavo.core.tenants import Tenants


class Population:
    """The places of requests (``running``, ``waiting``, ``prefix_waits``, ``families``, ``held_long``) and what the
    next plan has to tell the runner of them: ``released_rows``, ``copies`` to make again, ``unknown_rows``, which the
    runner has forgotten, and the ``publisher``'s table writes."""

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager) -> None:
        self.kv = kv
        self.costs = PreemptionCosts()
        self.preemptions: list[Preemption] = []
        """Those since this list was last emptied."""
        self._config = config
        self.counters = SchedulerCounters()
        self.running = RunningSet(kv.config.block_size)
        self.tenants = Tenants()
        self.ordering = _make_ordering(config.policy, self.tenants)
        self.waiting = RequestQueue(self.ordering)
        """New requests and preempted ones."""
        self.prefix_waits = PrefixWaits(config.max_prefix_wait_steps, self.waiting.push)
        self.families = Families()
        self.held_long = RequestQueue(self.ordering)
        """Long prompts that wait until fewer of them are in work."""
        self.output_lengths = OutputLengths()
        self.publisher = Publisher(kv, self.prefix_waits)
        self.copies: list[BlockCopy] = []
        self.released_rows: list[int] = []
        self.unknown_rows: set[Request] = set()
        self._next_order = 0
        self._next_row_id = 0

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.prefix_waits) + len(self.families) + len(self.held_long)

    def add(self, request: Request, children: list[Request], chain: HashChain) -> None:
        """Take in a new request, and those that will fork its prompt. ``chain``: still without hashes."""
        for new in (request, *children):
            new.order = self._next_order
            self._next_order += 1
            self.ordering.arrive(new, self.running)
            self.tenants.add(new)
            new.chain = chain.copy()
        self.waiting.push(request)
        self.families.add(request.group or request, children)

    def start(self, request: Request, hit: PrefixHit, num_tokens: int, step_id: int) -> list[BlockCopy]:
        """A waiting request runs, with blocks for its first ``num_tokens`` tokens, of which ``hit`` is there. Returns
        the copies that step ``step_id`` makes for it."""
        self.waiting.remove(request)
        self._note_start(request, request.num_prompt_tokens - hit.num_tokens)
        request.row_id = self._take_row_id()
        allocation = self.kv.allocate(hit, num_tokens, request.row_id, step_id)
        assert allocation is not None, "the caller has looked"
        request.tables = allocation.tables
        request.tables.retention = request.retention
        self._drop_swapped(request)
        request.move_to(Status.RUNNING)
        request.start_from(hit.num_tokens)
        if self.kv.config.enable_prefix_caching:
            self._claim(request, hit.num_device_blocks)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = hit.num_tokens
        self.running.add(request)
        return allocation.copies

    def _note_start(self, request: Request, num_computed: int) -> None:
        """A request that stands in no queue any more is about to start, ``num_computed`` tokens of its prompt to
        compute."""
        self.ordering.take_up(request)
        self.ordering.start(request)
        self.tenants.start(request, num_computed)

    def fork(self, parent: Request, child: Request) -> None:
        """A request in no queue runs, with the same computed tokens as ``parent``, in the same blocks."""
        assert parent.tables is not None
        self._note_start(child, 0)
        child.row_id = self._take_row_id()
        child.tables = self.kv.fork(parent.tables, parent.num_computed_tokens, child.row_id)
        child.tables.retention = child.retention
        child.move_to(Status.RUNNING)
        child.start_from(parent.num_computed_tokens)
        child.chain = parent.chain.copy()
        # What it shares it publishes when the parent does: who holds a named block holds all that it follows by name.
        child.next_publish, child.prompt_end = parent.next_publish, parent.prompt_end
        if child.num_cached_tokens is None:
            child.num_cached_tokens = parent.num_cached_tokens
            self.counters.num_forked_tokens += parent.num_computed_tokens
        self.running.add(child)

    def fork_or_queue(self, parent: Request, child: Request) -> None:
        """A beam in no queue takes over the tokens of ``parent``, and its blocks if it has any and there is a row left;
        else it gets in line with them. No step computes ``parent``, whose row will be another one."""
        self.tenants.settle((child,))
        child.token_ids = parent.token_ids.copy()
        child.num_settled_tokens = child.num_output_tokens
        child.chain = parent.chain.copy()
        if parent.status is Status.RUNNING and len(self.running) < self._config.max_num_seqs:
            self.publisher.publish_full(parent)
            self.fork(parent, child)
            self.unknown_rows.add(child)
        else:
            self.waiting.push(child)

    def rename_row(self, request: Request) -> None:
        """Let the runner make the row of a running request anew: its tokens are not those that the runner drew."""
        assert request.tables is not None
        self._forget_row(request)
        request.row_id = request.tables.row_id = self._take_row_id()
        self.unknown_rows.add(request)

    def loss_of(self, request: Request) -> policy.Loss:
        """What it would cost and bring to preempt a running request."""
        assert request.tables is not None
        num_tokens = request.num_computed_tokens - self.kv.num_shared_tokens(request.tables)
        return policy.Loss(max(0, num_tokens), self.kv.num_exclusive_blocks(request.tables))

    def preempt(self, request: Request, for_whom: Request | None = None) -> None:
        """Take a running request's blocks and put it back in line, for the sake of another, or of going on at all. What
        is in the prefix cache stays there; the rest is swapped out or will be computed again."""
        assert request.tables is not None
        self._publish_rest(request)
        num_free, mode = self.kv.pool.num_free, self._config.preemption_mode
        # A beam that waits for the others has all its tokens computed; the last is computed again for its candidates.
        num_tokens = min(request.num_computed_tokens, request.num_tokens - 1)
        num_own_blocks = self.kv.num_own_blocks(request.tables, num_tokens)
        num_own_tokens = num_tokens - self.kv.num_named_tokens(request.tables, num_tokens)
        swapped = None
        # What follows cached blocks is of no use to a request that may not read these.
        is_usable = request.may_read_cache or num_own_tokens == num_tokens
        wants_swap = (
            is_usable and num_own_tokens and policy.prefers_swap(mode, num_own_tokens, num_own_blocks, self.costs)
        )
        if wants_swap and not self.copies:  # what is still to be copied cannot go out before it has come
            swapped = self.kv.save(request.tables, num_tokens)
        self.withdraw(request)
        self.copies = [copy for copy in self.copies if self.kv.pool.ref_counts[copy.target]]
        request.swapped = swapped
        request.drafter = None  # made anew if it runs again
        request.num_preemptions += 1
        if request.group is not None:
            request.group.forget(request)
        self.waiting.push(request)
        num_lost = 0 if swapped else num_own_tokens
        self.counters.num_preemptions += 1
        self.counters.num_swaps += swapped is not None
        self.counters.num_preempted_tokens += num_lost
        num_freed = self.kv.pool.num_free - num_free
        self.preemptions.append(
            Preemption(request.request_id, num_freed, num_own_tokens - num_lost, num_lost, _reason(for_whom))
        )

    def withdraw(self, request: Request) -> None:
        """Take a request, which no step computes, out of the place where it stands, and its blocks, if it has any."""
        if request.status is not Status.RUNNING:
            self._take_from_line(request)
            return
        self._leave_running(request)
        self._free(request)
        request.move_to(Status.PREEMPTED)
        request.start_from(0)

    def end(self, request: Request, status: Status, stop_reason: int | str | None = None) -> None:
        """A request ends wherever it stands. Its blocks come back now or, if a step in flight computes it, by
        ``land_ended``; those who waited for its prompt get in line."""
        was_running = request.status is Status.RUNNING
        if was_running:
            self._leave_running(request)
        else:
            self._take_from_line(request)
        self.tenants.end(request)
        request.move_to(status)
        request.stop_reason = stop_reason
        if request.group is None and request.num_output_tokens and status is not Status.FAILED:
            self.output_lengths.note(request.num_output_tokens, status is Status.STOPPED, request.tenant)
        if request.pin_claim is not None:
            self.kv.keeping.pins.give_up(request.pin_claim)
        if was_running:
            self.land_ended(request)
        self.requeue(self.families.take(request))

    def land_ended(self, request: Request) -> None:
        """An ended request gives its blocks back, once no step in flight computes it."""
        if request.num_in_flight:
            return
        if request.status is not Status.FAILED:
            self._publish_rest(request)
        self._free(request)

    def num_owed_blocks(self, request: Request) -> int:
        """Blocks that a running request still needs for the tokens it has."""
        assert request.tables is not None
        return self.kv.num_owed_blocks(request.tables, request.num_planned_tokens)

    def requeue(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.waiting.push(request)

    def hold_long(self, request: Request) -> None:
        """Set a long prompt aside, until ``release_long``."""
        self.waiting.remove(request)
        self.held_long.push(request)

    def release_long(self) -> None:
        """The first of the long prompts that were set aside, if any, gets in line again, at its old place."""
        request = self.held_long.peek()
        if request is not None:
            self.held_long.remove(request)
            self.waiting.push(request)

    def forget_cached(self, with_blocks: Iterable[Request]) -> None:
        """Empty the prefix cache, but for what is pinned. Requests ``with_blocks``, also those that have ended and that
        a step in flight still computes, keep them and publish no more: what would follow a forgotten block could never
        be hit."""
        for request in with_blocks:
            if request.next_publish < NEVER:
                self._abandon_claims(request)
                request.next_publish = request.prompt_end = NEVER
        self.kv.forget_cached()

    def forget_rows(self) -> None:
        """The runner was reset: it knows no row."""
        self.publisher.table_writes.clear()
        self.released_rows.clear()
        self.unknown_rows = set(self.running)

    def forget_swapped(self, lost: set[int]) -> None:
        """These blocks of the host pool hold nothing: requests that were swapped out to them are computed again."""
        for request in (*self.waiting, *self.prefix_waits):
            if request.swapped and not lost.isdisjoint(chain.from_iterable(request.swapped.host_ids)):
                self._drop_swapped(request)

    def _drop_swapped(self, request: Request) -> None:
        if request.swapped is not None:
            self.kv.drop_swapped(request.swapped)
            request.swapped = None

    def _take_from_line(self, request: Request) -> None:
        self._drop_swapped(request)
        for place in (self.held_long, self.prefix_waits, self.families):
            if request in place:
                place.remove(request)
                return
        self.waiting.remove(request)

    def _leave_running(self, request: Request) -> None:
        self.running.remove(request)
        self._forget_row(request)
        if self.kv.config.enable_prefix_caching:
            self._abandon_claims(request)

    def _forget_row(self, request: Request) -> None:
        if request in self.unknown_rows:
            self.unknown_rows.remove(request)
        else:
            self.released_rows.append(request.row_id)

    def _claim(self, request: Request, num_cached_blocks: int) -> None:
        """What a request will compute and publish: blocks after the cached ones, and the one that is not full."""
        size = self.kv.config.block_size
        request.next_publish = (num_cached_blocks + 1) * size
        request.prompt_end = request.num_tokens
        index = request.num_tokens // size
        tail = pack_tokens(request.token_ids[index * size :])
        request.tail_hash = self.kv.hasher.hash_tail(request.chain.parents[index], tail) if tail else None
        self.prefix_waits.claim(request, num_cached_blocks)

    def _abandon_claims(self, request: Request) -> None:
        first_block = request.next_publish // self.kv.config.block_size - 1
        self.prefix_waits.abandon(request, first_block)

    def _publish_rest(self, request: Request) -> None:
        self.publisher.publish_rest(request)
        self.kv.pool.forget(copy.target for copy in self.copies)  # these do not hold yet what they are to hold

    def _free(self, request: Request) -> None:
        assert request.tables is not None
        self.kv.free(request.tables)
        request.tables = None

    def _take_row_id(self) -> int:
        self._next_row_id += 1
        return self._next_row_id - 1


def _make_ordering(settings: PolicySettings, tenants: Tenants) -> Ordering:
    if settings.name == "fair":
        return FairShares(settings, tenants)
    return ByPriority(settings.aging_seconds) if settings.name == "priority" else Fcfs()


def _reason(for_whom: Request | None) -> str:
    """Of a preemption."""
    if for_whom is None:
        return "nobody could go on"
    if for_whom.status is Status.RUNNING:
        return f"{for_whom.request_id} lacked blocks to go on"
    return f"it was the turn of {for_whom.request_id}"
