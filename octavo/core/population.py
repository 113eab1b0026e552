"""Every request the scheduler knows, each in exactly one place, and what a change of place does to rows, blocks and
those who wait. Decides nothing."""

from collections.abc import Iterable
from itertools import chain

from octavo.core import policy
from octavo.core.families import Families
from octavo.core.kv_manager import KVCacheManager, PrefixHit
from octavo.core.prefix_wait import PrefixWaits
from octavo.core.queue import RequestQueue
from octavo.core.request import NEVER, Request, Status
from octavo.core.running import RunningSet
from octavo.core.scheduler_types import Preemption, PreemptionCosts, SchedulerConfig, SchedulerCounters
from octavo.core.step import BlockCopy, TableWrite


class Population:
    """The places of requests (``running``, ``waiting``, ``prefix_waits``, ``families``) and what the next plan has to
    tell the runner of them: ``table_writes``, ``released_rows``, ``copies`` to make again, and ``unknown_rows``, which
    the runner has forgotten."""

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager) -> None:
        self.kv = kv
        self.costs = PreemptionCosts()
        self.preemptions: list[Preemption] = []
        """Those since this list was last emptied."""
        self._config = config
        self.counters = SchedulerCounters()
        self.running = RunningSet(kv.config.block_size)
        self.waiting = RequestQueue(policy.fcfs)
        """New requests and preempted ones."""
        self.prefix_waits = PrefixWaits(config.max_prefix_wait_steps)
        self.families = Families()
        self.copies: list[BlockCopy] = []
        self.table_writes: list[TableWrite] = []
        self.released_rows: list[int] = []
        self.unknown_rows: set[Request] = set()
        self._next_order = 0
        self._next_row_id = 0

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.prefix_waits) + len(self.families)

    def add(self, request: Request, children: list[Request], cache_root: bytes) -> None:
        """Take in a new request, and those that will fork its prompt."""
        for new in (request, *children):
            new.order = self._next_order
            self._next_order += 1
            new.cache_root = cache_root
        self.waiting.push(request)
        self.families.add(request, children)

    def start(self, request: Request, hit: PrefixHit, num_tokens: int) -> None:
        """A waiting request runs, with blocks for its first ``num_tokens`` tokens, of which ``hit`` is cached."""
        request.row_id = self._take_row_id()
        request.tables = self.kv.allocate(hit, num_tokens, request.row_id)
        self._drop_swapped(request)
        self.waiting.remove(request)
        request.move_to(Status.RUNNING)
        request.start_from(hit.num_tokens)
        if self.kv.config.enable_prefix_caching:
            num_cached_blocks = len(hit.block_ids[0])
            request.next_publish = (num_cached_blocks + 1) * self.kv.config.block_size
            self.prefix_waits.claim(request, num_cached_blocks)
        if request.num_cached_tokens is None:
            self._count_hit(request, hit.num_tokens)
        self.running.add(request)

    def fork(self, parent: Request, child: Request) -> None:
        """A request in no queue runs, with the same computed tokens as ``parent``, in the same blocks."""
        assert parent.tables is not None
        child.row_id = self._take_row_id()
        child.tables = self.kv.fork(parent.tables, parent.num_computed_tokens, child.row_id)
        child.move_to(Status.RUNNING)
        child.start_from(parent.num_computed_tokens)
        child.block_hashes = parent.block_hashes.copy()
        child.next_publish = parent.next_publish
        if child.num_cached_tokens is None:
            child.num_cached_tokens = parent.num_cached_tokens
        self.running.add(child)

    def fork_or_queue(self, parent: Request, child: Request) -> None:
        """A request in no queue takes over the tokens of ``parent``, and its blocks if it has any and there is a row
        left; else it gets in line with them."""
        child.token_ids = parent.token_ids.copy()
        child.block_hashes = parent.block_hashes.copy()
        if parent.status is Status.RUNNING and len(self.running) < self._config.max_num_seqs:
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

    def preempt(self, request: Request) -> None:
        """Take a running request's blocks and put it back in line. What is in the prefix cache stays there; the rest is
        swapped out or will be computed again."""
        assert request.tables is not None
        num_free, num_tokens = self.kv.pool.num_free, request.num_computed_tokens
        num_own_blocks = self.kv.num_own_blocks(request.tables, num_tokens)
        num_kept_tokens = self.kv.num_named_tokens(request.tables, num_tokens)
        swapped = None
        if policy.prefers_swap(self._config.preemption_mode, num_tokens - num_kept_tokens, num_own_blocks, self.costs):
            swapped = self.kv.save(request.tables, num_tokens)
        self.withdraw(request)
        request.swapped = swapped
        request.num_preemptions += 1
        self.waiting.push(request)
        num_lost = 0 if swapped else num_tokens - num_kept_tokens
        self.counters.num_preemptions += 1
        self.counters.num_swaps += swapped is not None
        self.counters.num_preempted_tokens += num_tokens
        self.preemptions.append(
            Preemption(
                request.request_id, self.kv.pool.num_free - num_free, num_tokens - num_kept_tokens - num_lost, num_lost
            )
        )

    def withdraw(self, request: Request) -> None:
        """Take a request out of the place where it stands, and its blocks, if it has any and no step computes it."""
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
        if request.status is Status.RUNNING:
            self._leave_running(request)
            if request.num_in_flight == 0:
                self._free(request)
        else:
            self._take_from_line(request)
        request.move_to(status)
        request.stop_reason = stop_reason
        self.requeue(self.families.take(request))

    def land_ended(self, request: Request) -> None:
        """A step in flight that computed an ended request has landed (or failed)."""
        if request.num_in_flight == 0:
            self._free(request)

    def requeue(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.waiting.push(request)

    def forget_cached(self) -> None:
        """Empty the prefix cache. Running requests keep their blocks and publish no more: what would follow a
        forgotten block could never be hit."""
        for request in self.running:
            if request.next_publish < NEVER:
                self._abandon_claims(request)
                request.next_publish = NEVER
        self.kv.forget_cached()

    def forget_rows(self) -> None:
        """The runner was reset: it knows no row."""
        self.table_writes.clear()
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
        for place in (self.prefix_waits, self.families):
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

    def _abandon_claims(self, request: Request) -> None:
        first_block = request.next_publish // self.kv.config.block_size - 1
        self.requeue(self.prefix_waits.abandon(request, first_block))

    def _free(self, request: Request) -> None:
        assert request.tables is not None
        self.kv.free(request.tables)
        request.tables = None

    def _take_row_id(self) -> int:
        self._next_row_id += 1
        return self._next_row_id - 1

    def _count_hit(self, request: Request, num_tokens: int) -> None:
        """Count what the cache had of a request's prompt: once a request, whatever its choices and preemptions."""
        request.num_cached_tokens = num_tokens
        if request.choice_index == 0:
            self.counters.prefix_hits += num_tokens
            if self.kv.config.enable_prefix_caching and request.params.prompt_logprobs is None:
                self.counters.prefix_queries += request.num_prompt_tokens
