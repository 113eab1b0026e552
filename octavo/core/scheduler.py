"""Which tokens of which requests the next step computes.

There is no prefill phase and no decode phase: a request has tokens, some of them are computed, and each step gives
each running request some more to compute within one token budget (the idea of vLLM v1's scheduler). Prompts in
chunks, prefix hits and coming back after preemption are all the computed count catching up. Requests that have caught
up advance together as the decode batch; that is bookkeeping for many at once, not another phase.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from octavo.core import policy
from octavo.core.decode_batch import Due, Roster, append_tokens
from octavo.core.errors import InvalidRequestError
from octavo.core.kv_manager import FilledBlock, KVCacheManager, PrefixHit
from octavo.core.plan_draft import PlanDraft
from octavo.core.prefix_wait import PrefixWaits
from octavo.core.queue import RequestQueue
from octavo.core.request import NEVER, Request, Status
from octavo.core.running import RunningSet
from octavo.core.scheduler_types import SchedulerConfig, SchedulerCounters, StepOutcome, StopCheck
from octavo.core.step import BlockCopy, StepPlan, StepResult, TableWrite


@dataclass(frozen=True, slots=True)
class _Flight:
    """A plan in flight: its requests, row by row, of which the first are the ``roster``'s, in batch step
    ``batch_step``; ``num_departures`` of the batch when it was planned."""

    plan: StepPlan
    requests: list[Request]
    roster: Roster
    batch_step: int
    num_departures: int


@dataclass(frozen=True, slots=True)
class _Landing:
    """A step that lands: the flight, what it brought, what comes of it."""

    flight: _Flight
    result: StepResult
    check_stop: StopCheck | None
    outcome: StepOutcome


class Scheduler:
    """Owns the queues; the manager owns the blocks. Reads no clock and builds no tensors.

    ``schedule`` and ``update`` alternate; up to ``max_steps_in_flight`` plans may be out. Requests end in ``update``
    (or by ``abort``); blocks of a request that ends while a step computes it come back when that step lands.
    """

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager) -> None:
        self.config = config
        self.kv = kv
        self.counters = SchedulerCounters()
        self.running = RunningSet(kv.config.block_size)
        self.waiting = RequestQueue(policy.fcfs)
        """New requests and preempted ones."""
        self.prefix_waits = PrefixWaits(config.max_prefix_wait_steps)
        self._flights: deque[_Flight] = deque()
        self._suspects: deque[Request] = deque()
        self._unknown_rows: set[Request] = set()
        self._copies: list[BlockCopy] = []
        self._table_writes: list[TableWrite] = []
        self._released_rows: list[int] = []
        self._next_order = 0
        self._next_row_id = 0
        self._next_step_id = 0

    # Intake

    @property
    def max_tokens_per_sequence(self) -> int:
        """The longest prompt plus output that can ever run: the context's limit or the pool's."""
        return min(self.config.max_model_len, self.kv.config.num_token_slots)

    def check(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """Can such a request run at all?

        Raises:
            InvalidRequestError: never, however long it waits; names the limit it breaks (spec D25).
        """
        if num_prompt_tokens == 0:
            raise InvalidRequestError("the prompt is empty: at least one token is needed to start from", "prompt")
        limit = self.max_tokens_per_sequence
        if num_prompt_tokens + max_tokens > limit:
            of_pool = limit < self.config.max_model_len
            what = "the KV pool holds" if of_pool else "the model's context (max_model_len) is"
            raise InvalidRequestError(
                f"{what} {limit} tokens, but this request needs {num_prompt_tokens + max_tokens} "
                f"({num_prompt_tokens} in the prompt, {max_tokens} for the output); shorten either",
                "max_tokens" if num_prompt_tokens < limit else "prompt",
            )

    def add(self, request: Request, cache_salt: str | None = None) -> None:
        """Put a checked request in line."""
        request.order = self._next_order
        self._next_order += 1
        request.cache_root = self.kv.hasher.root(cache_salt)
        self.waiting.push(request)

    def abort(self, request: Request) -> None:
        """End a request wherever it stands; nothing happens if it has ended."""
        if not request.is_finished:
            self._end(request, Status.ABORTED)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.prefix_waits)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self._flights or self.num_waiting)

    # Planning

    def schedule(self) -> StepPlan | None:
        """The next step, or None if nothing can run until a step in flight has landed."""
        while self._suspects:
            if self._flights:
                return None
            if plan := self._plan_step():
                return plan
            self._suspects.popleft()  # it cannot run alone now: let it run with the others
        return self._plan_step()

    def _plan_step(self) -> StepPlan | None:
        draft = PlanDraft(self._next_step_id, self.config.max_num_batched_tokens)
        self._plan_batch(draft)
        self._plan_behind(draft)
        if not draft.has_preempted and not self._suspects:
            self._admit(draft)
        return self._issue(draft, draft.requests) if draft.row_ids or draft.roster.row_ids else None

    def _plan_batch(self, draft: PlanDraft) -> None:
        """One token for each member of the decode batch; only those whose time has come are looked at."""
        batch = self.running.batch
        due = batch.due_for_plan()
        for request in due.at_end:
            self.running.fall_behind(request)
        self._grow([request for request in due.at_boundary if request.batch is not None], draft)
        draft.add_batch(batch.roster)
        batch.num_planned += 1

    def _grow(self, members: list[Request], draft: PlanDraft) -> None:
        """One more block for each of these members, all at once where blocks suffice, else the oldest first."""
        writes = self.kv.append_block([request.tables for request in members if request.tables is not None])
        if writes is not None:
            draft.table_writes += writes
            return
        for request in members:
            # One that is no member any more was preempted just now, for an older one.
            if request.batch is not None and not self._make_room(request, request.num_computed_tokens + 1, draft):
                self.running.fall_behind(request)

    def _plan_behind(self, draft: PlanDraft) -> None:
        """The budget that is left for the others: first those that lack one token, then the oldest."""
        behind = [self._suspects[0]] if self._suspects else self.running.behind.copy()
        for request in sorted(behind, key=lambda request: request.num_planned_tokens - request.num_computed_tokens > 1):
            if request.status is not Status.RUNNING or request.num_planned_tokens == request.max_total_tokens:
                continue
            count = min(request.num_planned_tokens - request.num_computed_tokens, draft.max_tokens)
            if count > 0 and self._make_room(request, request.num_computed_tokens + count, draft):
                self._plan_chunk(request, count, draft)
            draft.num_owed_blocks += self._num_owed_blocks(request)

    def _plan_chunk(self, request: Request, count: int, draft: PlanDraft) -> None:
        """Plan a chunk; a request that has caught up with it goes on in the decode batch."""
        samples = draft.add_chunk(request, count)
        if samples and request.num_planned_tokens < request.max_total_tokens and not self._suspects:
            self.running.catch_up(request)

    def _admit(self, draft: PlanDraft) -> None:
        """Requests that wait, in order, while tokens, rows and blocks last. A request is admitted only where all it
        has so far will fit beside what running ones have, with some growth kept back."""
        self._requeue(self.prefix_waits.expire(draft.step_id))
        while draft.max_tokens > 0 and len(self.running) < self.config.max_num_seqs:
            request = self.waiting.peek()
            if request is None:
                return
            hit = self._lookup(request)
            block_hash = self._next_usable_hash(request, hit)
            if block_hash is not None and self.prefix_waits.must_wait(request, block_hash, draft.step_id):
                self.waiting.remove(request)
                self.prefix_waits.park(request, block_hash, draft.step_id)
                continue
            spare = draft.num_owed_blocks
            if self.running:
                spare += policy.growth_reserve(len(self.running), self.kv.config.num_blocks)
            if not self.kv.can_hold(hit, request.num_tokens, spare):
                return
            self._start(request, hit, draft)

    def _lookup(self, request: Request) -> PrefixHit:
        if not self.kv.config.enable_prefix_caching:
            return self.kv.lookup_prefix((), request.num_tokens)
        self.kv.hasher.extend(request.block_hashes, request.cache_root, request.token_ids, request.num_tokens)
        reads = () if request.params.prompt_logprobs is not None else request.block_hashes
        return self.kv.lookup_prefix(reads, request.num_tokens)

    def _next_usable_hash(self, request: Request, hit: PrefixHit) -> bytes | None:
        """Hash of the block after the hit, where the request could use it if it were cached."""
        if request.params.prompt_logprobs is not None:
            return None
        index = hit.num_tokens // self.kv.config.block_size
        usable = min(len(request.block_hashes), (request.num_tokens - 1) // self.kv.config.block_size)
        return request.block_hashes[index] if index < usable else None

    def _start(self, request: Request, hit: PrefixHit, draft: PlanDraft) -> None:
        """Admit a request whose blocks suffice, and plan its first chunk."""
        count = min(request.num_tokens - hit.num_tokens, draft.max_tokens)
        request.row_id = self._next_row_id
        self._next_row_id += 1
        request.tables = self.kv.allocate(hit, hit.num_tokens + count, request.row_id)
        self.waiting.remove(request)
        request.move_to(Status.RUNNING)
        request.start_from(hit.num_tokens)
        if self.kv.config.enable_prefix_caching:
            request.next_publish = hit.num_tokens + self.kv.config.block_size
            self.prefix_waits.claim(request, hit.num_tokens // self.kv.config.block_size)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = hit.num_tokens
            self.counters.prefix_hits += hit.num_tokens
            if self.kv.config.enable_prefix_caching and request.params.prompt_logprobs is None:
                self.counters.prefix_queries += request.num_prompt_tokens
        self.running.add(request)
        draft.new_requests.append(request)
        self._plan_chunk(request, count, draft)
        draft.num_owed_blocks += self._num_owed_blocks(request)

    def _num_owed_blocks(self, request: Request) -> int:
        assert request.tables is not None
        have = request.tables.num_blocks * self.kv.config.num_groups
        return self.kv.num_blocks_for(request.num_planned_tokens) - have

    def _make_room(self, request: Request, num_tokens: int, draft: PlanDraft) -> bool:
        """Let ``request`` write its first ``num_tokens`` positions, preempting younger requests if need be.

        Where none can give way (they are planned already, or in flight), the request waits in place: it keeps its
        blocks until an older one needs them."""
        assert request.tables is not None
        if num_tokens <= request.tables.capacity:
            return True
        while (extension := self.kv.extend(request.tables, num_tokens, draft.step_id)) is None:
            victim = policy.least_work_lost(self.running.idle_younger_than(request))
            if victim is None:
                return False
            self._preempt(victim)
            draft.has_preempted = True
        draft.add_extension(extension)
        return True

    def _preempt(self, request: Request) -> None:
        """Take a request's blocks; it will be computed again from what is still cached (recompute)."""
        self.counters.num_preemptions += 1
        self.counters.num_preempted_tokens += request.num_computed_tokens
        request.num_preemptions += 1
        self._leave_running(request)
        self._free(request)
        request.move_to(Status.PREEMPTED)
        request.start_from(0)
        self.waiting.push(request)

    def _issue(self, draft: PlanDraft, requests: list[Request]) -> StepPlan:
        if self._unknown_rows:
            again = [request for request in requests if request in self._unknown_rows]
            self._unknown_rows.difference_update(again)
            draft.new_requests += again
        draft.copies[:0] = self._copies
        draft.table_writes[:0] = self._table_writes
        batch = self.running.batch
        plan = draft.freeze(batch.num_planned - 1, tuple(self._released_rows))
        self._copies, self._table_writes, self._released_rows = [], [], []
        self._flights.append(_Flight(plan, requests, draft.roster, batch.num_planned, batch.num_departures))
        self._next_step_id += 1
        self.counters.num_steps += 1
        return plan

    # Landing

    def update(self, result: StepResult, check_stop: StopCheck | None = None) -> StepOutcome:
        """The oldest step in flight has landed: tokens enter their requests, full blocks the prefix cache, and
        requests end that have to."""
        flight = self._flights.popleft()
        assert flight.plan.step_id == result.step_id, "steps land in the order they were issued"
        landing = _Landing(flight, result, check_stop, StepOutcome(flight.requests, [], [], [], []))
        batch_size = len(flight.roster.requests)
        due = self.running.batch.land(flight.batch_step)
        if self.running.batch.num_departures == flight.num_departures and not result.faults:
            self._land_batch(landing, due)
        else:
            self._land_rows(landing, 0, batch_size)
        self._land_rows(landing, batch_size, len(flight.requests))
        self.kv.land(flight.plan.step_id)
        self.counters.generation_tokens += len(landing.outcome.token_ids)
        self._clear_suspects(flight.requests)
        return landing.outcome

    def _land_batch(self, landing: _Landing, due: Due) -> None:
        """The decode batch as a whole: nobody has left it since it was planned."""
        roster, outcome = landing.flight.roster, landing.outcome
        token_ids = landing.result.token_ids[: len(roster.requests)]
        append_tokens(roster, token_ids)
        self._publish_filled(due.at_boundary)
        outcome.sampled.extend(roster.requests)
        outcome.token_ids.extend(token_ids)
        if landing.check_stop is None and self.running.batch.stop_token_ids.isdisjoint(token_ids):
            ending = [(request, request.token_ids[-1]) for request in due.at_end]
        else:
            ending = list(zip(roster.requests, token_ids, strict=True))
        for request, token_id in ending:
            if self._ends(request, token_id, landing.check_stop):
                outcome.finished.append(request)

    def _land_rows(self, landing: _Landing, first: int, last: int) -> None:
        """Rows ``first`` .. ``last`` - 1 of the plan, one by one. All rows before ``first`` have drawn a token."""
        flight, plan = landing.flight, landing.flight.plan
        drawn = iter(landing.result.token_ids[first:])
        for request, count, samples in zip(
            flight.requests[first:last], plan.counts[first:last], plan.samples[first:last], strict=True
        ):
            token_id = next(drawn) if samples else None
            is_member = request.batch is not None and request.joined < flight.batch_step
            if not is_member:
                request.land(count, samples)
            if request.is_finished:
                if request.num_in_flight == 0:
                    self._free(request)
                continue
            self._publish(request)
            if token_id is not None:
                self._land_token(landing, request, token_id)

    def _land_token(self, landing: _Landing, request: Request, token_id: int) -> None:
        outcome = landing.outcome
        if request.row_id in landing.result.faults:
            self._end(request, Status.FAILED)
            outcome.failed.append(request)
            return
        request.token_ids.append(token_id)
        outcome.sampled.append(request)
        outcome.token_ids.append(token_id)
        self._count_prompt(request)
        if self._ends(request, token_id, landing.check_stop):
            outcome.finished.append(request)

    def _ends(self, request: Request, token_id: int, check_stop: StopCheck | None) -> bool:
        if token_id in request.stop_token_ids and request.num_output_tokens > request.params.min_tokens:
            listed = token_id in (request.params.stop_token_ids or ())
            self._end(request, Status.STOPPED, token_id if listed else None)
        elif check_stop is not None and (stop := check_stop(request, token_id)) is not None:
            self._end(request, Status.STOPPED, stop)
        elif len(request.token_ids) >= request.max_total_tokens:
            self._end(request, Status.LENGTH)
        else:
            return False
        return True

    def _publish(self, request: Request) -> None:
        """Enter the blocks that have filled up and landed in the prefix cache."""
        landed = request.num_landed_tokens
        if landed < request.next_publish:
            return
        tables, hashes, size = request.tables, request.block_hashes, self.kv.config.block_size
        assert tables is not None
        if len(hashes) < landed // size:
            self.kv.hasher.extend(hashes, request.cache_root, request.token_ids, landed)
        first = request.next_publish // size - 1
        filled = hashes[first : landed // size]
        self._table_writes += self.kv.publish(tables, first, filled, self._reader_in_flight)
        self._requeue(self.prefix_waits.settle(request, filled))
        request.next_publish = (landed // size + 1) * size

    def _publish_filled(self, members: list[Request]) -> None:
        """The same for members of the decode batch, each of which has filled exactly one block."""
        size = self.kv.config.block_size
        publishing = [request for request in members if request.next_publish < NEVER]
        self._hash_filled([r for r in publishing if len(r.block_hashes) * size < r.next_publish])
        hashes = [request.block_hashes[request.next_publish // size - 1] for request in publishing]
        filled = []
        for request, block_hash in zip(publishing, hashes, strict=True):
            assert request.tables is not None
            filled.append(FilledBlock(request.tables, request.next_publish // size - 1, block_hash))
            request.next_publish += size
        self._table_writes += self.kv.publish_each(filled, self._reader_in_flight)
        if self.prefix_waits.is_awaited(hashes):
            for request, block_hash in zip(publishing, hashes, strict=True):
                self._requeue(self.prefix_waits.settle(request, [block_hash]))

    def _hash_filled(self, members: list[Request]) -> None:
        """Name the block that each of these has just filled, the first without a hash."""
        size = self.kv.config.block_size
        parents = [(request.block_hashes or (request.cache_root,))[-1] for request in members]
        blocks = [request.token_ids[request.next_publish - size : request.next_publish] for request in members]
        for request, block_hash in zip(members, self.kv.hasher.hash_each(parents, blocks), strict=True):
            request.block_hashes.append(block_hash)

    @property
    def _reader_in_flight(self) -> int | None:
        """The last step that may read blocks given up now."""
        return self._next_step_id - 1 if self._flights else None

    def _count_prompt(self, request: Request) -> None:
        """Count a prompt when its first token is drawn: once a request, whatever its choices and preemptions."""
        if request.num_output_tokens == 1 and request.choice_index == 0:
            self.counters.prompt_tokens += request.num_prompt_tokens

    def roll_back(self) -> list[Request]:
        """The steps in flight have failed: nothing of them counts. Their requests are tried again one at a time; one
        that was alone in its step has itself to blame, ends as failed and is returned.

        The runner must have been reset: rows are made known to it again."""
        requests = list(dict.fromkeys(request for flight in self._flights for request in flight.requests))
        self._copies = [copy for flight in self._flights for copy in flight.plan.copies]
        self._flights.clear()
        self.running.dissolve_batch()
        for request in requests:
            ended = request.is_finished and request.num_in_flight > 0
            request.roll_back()
            if ended:
                self._free(request)
        if not self._copies:  # a copy that the next plan makes again still reads its source
            self.kv.land(self._next_step_id - 1)
        live = [request for request in requests if not request.is_finished]
        self._table_writes.clear()
        self._released_rows.clear()
        self._unknown_rows = set(self.running)
        self._suspects = deque(sorted({*self._suspects, *live}, key=lambda request: request.order))
        if len(requests) > 1 or not live:
            return []
        self._end(live[0], Status.FAILED)
        self._clear_suspects(live)
        return live

    def _clear_suspects(self, cleared: Iterable[Request]) -> None:
        if self._suspects:
            innocent = {request for request in cleared if request.is_finished or not request.num_in_flight}
            self._suspects = deque(
                request for request in self._suspects if request not in innocent and request.status is Status.RUNNING
            )

    # Endings

    def _end(self, request: Request, status: Status, stop_reason: int | str | None = None) -> None:
        if request.status is Status.RUNNING:
            self._leave_running(request)
            if request.num_in_flight == 0:
                self._free(request)
        elif request in self.prefix_waits:
            self.prefix_waits.remove(request)
        else:
            self.waiting.remove(request)
        request.move_to(status)
        request.stop_reason = stop_reason
        if self._suspects and request in self._suspects:
            self._suspects.remove(request)

    def _leave_running(self, request: Request) -> None:
        self.running.remove(request)
        if request in self._unknown_rows:
            self._unknown_rows.remove(request)
        else:
            self._released_rows.append(request.row_id)
        if self.kv.config.enable_prefix_caching:
            first_block = request.next_publish // self.kv.config.block_size - 1
            self._requeue(self.prefix_waits.abandon(request, first_block))

    def _free(self, request: Request) -> None:
        assert request.tables is not None
        self.kv.free(request.tables)
        request.tables = None

    def _requeue(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.waiting.push(request)

    def reset_prefix_cache(self) -> None:
        """Forget every cached block. Running requests keep their blocks and publish no more: what would follow a
        forgotten block could never be hit."""
        for request in self.running:
            if request.next_publish < NEVER:
                first_block = request.next_publish // self.kv.config.block_size - 1
                self._requeue(self.prefix_waits.abandon(request, first_block))
                request.next_publish = NEVER
        self.kv.pool.forget_all()
