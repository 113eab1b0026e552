"""Which tokens of which requests the next step computes.

There is no prefill phase and no decode phase: a request has tokens, some of them are computed, and each step gives
each running request some more to compute within one token budget (the idea of vLLM v1's scheduler). Prompts in
chunks, prefix hits and coming back after preemption are all the computed count catching up. Requests that have caught
up advance together as the decode batch; that is bookkeeping for many at once, not another phase.
"""

from collections.abc import Sequence
from itertools import islice

from octavo.core import policy
from octavo.core.admission import Admission
from octavo.core.chunk_budget import ChunkBudget
from octavo.core.flight import Flight
from octavo.core.kv_types import PrefixHit
from octavo.core.pace import Pace
from octavo.core.plan_draft import PlanDraft
from octavo.core.population import Population
from octavo.core.request import Request, Status
from octavo.core.scheduler_types import SchedulerConfig
from octavo.core.speculation import Speculation


class Planner:
    """Makes plans; owns no request."""

    def __init__(self, config: SchedulerConfig, population: Population, speculation: Speculation) -> None:
        self.next_step_id = 0
        self._config = config
        self._population = population
        self._speculation = speculation
        self._kv = population.kv
        self._running = population.running
        self.pace = Pace(speculation.costs, config.prompts.target_seconds)
        self.admission = Admission(config, population)

    def plan(self, on_trial: Request | None) -> Flight | None:
        """The next step, of nothing but ``on_trial`` if that is given; None if nothing can run now."""
        draft = PlanDraft(self.next_step_id, self._config.max_num_batched_tokens, on_trial)
        may_admit = on_trial is None
        if may_admit:
            self._clear_way(draft)
        self._plan_batch(draft)
        short, long = self._plan_behind(draft)
        self._plan_prompts(short, draft)
        kept = (request for request in long if request.status is Status.RUNNING)  # a short one may have preempted some
        draft.num_owed_blocks += sum(map(self._population.num_owed_blocks, kept))
        if may_admit and not draft.has_preempted:
            for request, hit in islice(self.admission.candidates(draft), 1 if draft.is_for_one else None):
                self._start(request, hit, draft)
        draft.chunks.set_free()
        self._plan_prompts(long, draft)
        if may_admit and not draft.has_preempted:
            self._add_drafts(draft)
        return None if draft.is_empty else self._issue(draft)

    def plan_moves(self) -> Flight:
        """A step that computes nothing and makes the moves that are due."""
        return self._issue(PlanDraft(self.next_step_id, 0, None))

    def _clear_way(self, draft: PlanDraft) -> None:
        """Let others give way to the first in line, where they have to."""
        self.admission.clear_way(draft)
        for request in draft.withheld:
            if request.batch is not None:
                self._running.fall_behind(request)

    def _plan_batch(self, draft: PlanDraft) -> None:
        """One token for each member of the decode batch; only those whose time has come are looked at."""
        batch = self._running.batch
        due = batch.due_for_plan()
        for request in due.at_end:
            self._running.fall_behind(request)
        members = [request for request in due.at_boundary if request.batch is not None]
        for request in self._speculation.take_back(members, len(self._running)):
            self._running.fall_behind(request)
        self._grow([request for request in members if request.batch is not None], draft)
        draft.add_batch(batch.roster)
        batch.num_planned += 1

    def _grow(self, members: list[Request], draft: PlanDraft) -> None:
        """One more block for each of these members, all at once where blocks suffice, else to the first in rank."""
        tables = [request.tables for request in members if request.tables is not None]
        writes = self._kv.append_block(tables, (request.num_landed_tokens for request in members))
        if writes is not None:
            draft.table_writes += writes
            return
        for request in members:
            # One that is no member any more was preempted just now, for one before it.
            if request.batch is not None and not self._make_room(request, request.num_computed_tokens + 1, draft):
                self._running.fall_behind(request)

    def _plan_behind(self, draft: PlanDraft) -> tuple[list[Request], list[Request]]:
        """Those behind that lack one token have it. Returns the others, in order of rank: short prompts, and long ones,
        for which half of the budget is held back."""
        behind = [draft.on_trial] if draft.on_trial else self._running.behind.copy()
        prompts: list[Request] = []
        for request in behind:
            num_lacking = request.num_planned_tokens - request.num_computed_tokens
            if num_lacking > 1:
                prompts.append(request)
            elif num_lacking and self._may_be_planned(request, draft):
                if draft.max_tokens and self._make_room(request, request.num_computed_tokens + 1, draft):
                    self._plan_chunk(request, 1, draft)
                draft.num_owed_blocks += self._population.num_owed_blocks(request)
        prompts = [request for request in prompts if self._may_be_planned(request, draft)]
        draft.chunks = self._budget(prompts, draft)
        short, long = [each for each in prompts if not each.is_long], [each for each in prompts if each.is_long]
        if long:
            draft.chunks.hold_back()
        return short, long

    def _budget(self, prompts: Sequence[Request], draft: PlanDraft) -> ChunkBudget:
        """For the chunks of this step: of ``prompts``, and of those in line."""
        if draft.on_trial is not None:
            return ChunkBudget(draft.max_tokens)
        num_rows = len(draft.roster.requests) + len(draft.others)
        return self.pace.budget(draft.max_tokens, num_rows, len(prompts) + len(self._population.waiting))

    def _may_be_planned(self, request: Request, draft: PlanDraft) -> bool:
        return request.status is Status.RUNNING and request.may_be_planned and request not in draft.withheld

    def _plan_prompts(self, prompts: Sequence[Request], draft: PlanDraft) -> None:
        """A chunk of each, as far as the budget goes: short prompts as they come, long ones in equal parts."""
        for place, request in enumerate(prompts):
            if not self._may_be_planned(request, draft):  # preempted meanwhile
                continue
            num_sharing = len(prompts) - place if request.is_long else 1
            start = request.num_computed_tokens
            count = min(request.num_planned_tokens - start, draft.chunks.most_tokens(start, num_sharing))
            if count and self._make_room(request, start + count, draft):
                draft.chunks.spend(start, count)
                self._plan_chunk(request, count, draft)
            if not request.is_long:
                draft.num_owed_blocks += self._population.num_owed_blocks(request)

    def _plan_chunk(self, request: Request, count: int, draft: PlanDraft) -> None:
        """Plan a chunk. Where it is the last of a prompt, those who waited for it begin with it."""
        samples = draft.add_chunk(request, count)
        if samples and draft.on_trial is None:
            if self._population.families.is_parent(request):
                self._fork(request, draft)
            self._catch_up(request)

    def _catch_up(self, request: Request) -> None:
        """A request that lacks only what is being drawn goes on in the decode batch, if its next token has a place: the
        tail that a fork shares is copied first, and blocks that drafts took are filled. Or it goes on with drafts."""
        assert request.tables is not None
        tables, num_computed, size = request.tables, request.num_computed_tokens, self._kv.config.block_size
        has_place = num_computed <= tables.capacity and tables.num_blocks * size - num_computed < size
        is_last = request.num_planned_tokens >= request.max_total_tokens
        if request.group is not None or is_last or self._speculation.engages(request, len(self._running)):
            return
        if has_place:
            self._running.catch_up(request)

    def _fork(self, parent: Request, draft: PlanDraft) -> None:
        """The further choices of a request begin, in the blocks of its prompt, as many as there are rows and blocks
        for their next tokens; the others get in line."""
        children = self._population.families.take(parent)
        num_rows = self._config.max_num_seqs - len(self._running)
        num_blocks = self._kv.pool.num_free - draft.num_owed_blocks - self._growth_reserve()
        num_forks = max(0, min(num_rows, num_blocks // self._kv.config.num_groups - 1))
        for child in children[:num_forks]:
            self._population.fork(parent, child)
            draft.add_fork(parent, child)
            self._catch_up(child)
        draft.num_owed_blocks += (num_forks + 1) * self._kv.config.num_groups
        self._population.requeue(children[num_forks:])

    def _add_drafts(self, draft: PlanDraft) -> None:
        """Drafts to the rows of requests that speculate, after everything else: within what is left of the budget, and
        in blocks that nobody is about to need."""
        if not self._speculation.may_pay(len(self._running)):
            return
        gain = self._speculation.costs.gain(self._config.max_num_batched_tokens - draft.max_tokens)
        for place, request in enumerate(draft.others):
            most = min(draft.max_tokens, self._room_for_drafts(request, draft))
            if most > 0 and draft.takes_drafts(place):
                token_ids = self._speculation.draft(request, gain, most, len(self._running))
                if token_ids:
                    draft.add_drafts(place, token_ids)
                    self._hold_drafts(request, draft)

    def _room_for_drafts(self, request: Request, draft: PlanDraft) -> int:
        """Positions after those that are planned: up to its last token, in its blocks and in such free ones as leave
        another to each running request; in none while somebody waits for them."""
        assert request.tables is not None
        tables, num_groups = request.tables, self._kv.config.num_groups
        num_spare = self._kv.pool.num_free - draft.num_owed_blocks - len(self._running) * num_groups
        num_blocks = 0 if self._population.num_waiting else max(0, num_spare // num_groups)
        capacity = tables.capacity + num_blocks * self._kv.config.block_size
        return min(capacity - request.num_computed_tokens, request.max_total_tokens - request.num_planned_tokens)

    def _hold_drafts(self, request: Request, draft: PlanDraft) -> None:
        """Blocks for the drafts of a request; ``_room_for_drafts`` has looked whether there are."""
        is_held = self._extend(request, request.num_computed_tokens, draft)
        assert is_held, "there is room"

    def _growth_reserve(self) -> int:
        return policy.growth_reserve(len(self._running), self._kv.config.num_blocks) if self._running else 0

    def _start(self, request: Request, hit: PrefixHit, draft: PlanDraft) -> None:
        """Admit a request whose blocks suffice, and plan its first chunk."""
        num_lacking = request.num_tokens - hit.num_tokens
        count = min(num_lacking, draft.chunks.most_tokens(hit.num_tokens))
        request.is_long = self.admission.is_long(num_lacking)
        draft.chunks.spend(hit.num_tokens, count)
        draft.copies += self._population.start(request, hit, hit.num_tokens + count, draft.step_id)
        draft.new_requests.append(request)
        if hit.needs_moves:
            draft.unfounded.append(request)
        self._plan_chunk(request, count, draft)
        draft.num_owed_blocks += self._population.num_owed_blocks(request)

    def _make_room(self, request: Request, num_tokens: int, draft: PlanDraft) -> bool:
        """Let ``request`` write its first ``num_tokens`` positions, preempting those after it in rank if need be.

        Where none can give way (they are planned already, or in flight), the request waits in place: it keeps its
        blocks until one before it needs them."""
        while not self._extend(request, num_tokens, draft):
            victim = policy.least_work_lost(self._running.idle_after(request), self._population.loss_of)
            if victim is None:
                return False
            self._population.preempt(victim, request)
            draft.has_preempted = True
        return True

    def _extend(self, request: Request, num_tokens: int, draft: PlanDraft) -> bool:
        """Blocks for the first ``num_tokens`` positions, where there are enough."""
        assert request.tables is not None
        if num_tokens <= request.tables.capacity:
            return True
        extension = self._kv.extend(request.tables, num_tokens, draft.step_id, request.num_landed_tokens)
        if extension is None:
            return False
        draft.add_extension(extension)
        return True

    def _issue(self, draft: PlanDraft) -> Flight:
        population, batch, requests = self._population, self._running.batch, draft.requests
        if population.unknown_rows:
            again = [request for request in requests if request in population.unknown_rows]
            population.unknown_rows.difference_update(again)
            draft.new_requests += again
        draft.copies[:0] = population.copies
        draft.table_writes[:0] = population.publisher.table_writes
        moves = self._kv.host.issue(draft.step_id)
        poisons = self._kv.pool.take_dropped()
        plan = draft.freeze(batch.num_planned - 1, moves, tuple(population.released_rows), poisons)
        population.copies, population.publisher.table_writes, population.released_rows = [], [], []
        self.next_step_id += 1
        population.counters.num_steps += 1
        return Flight(plan, requests, draft.roster, batch.num_planned, batch.num_departures, draft.unfounded)
