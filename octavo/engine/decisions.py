"""Reads from each plan what the scheduler has decided about requests, and writes it down with the time.

Nothing is asked of the scheduler while it plans: who was admitted, resumed or given a chunk stands in the plan, and who
was passed or set aside can be seen on those that wait. A step that only decodes costs a comparison.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from octavo.core.admission import LOOKAHEAD
from octavo.core.request import Request, Status
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import Preemption
from octavo.core.step import StepPlan
from octavo.engine.choice import Choice, split_sequence_id
from octavo.engine.intake import MAX_TENANT_NAME
from octavo.engine.messages import EngineRequest
from octavo.engine.traces import EventKind, EventLog, FlatEvent, RequestFacts, RequestTrace

MAX_NOTE = 300


class Decisions:
    """``choices``, and ``opened``, the sequences of each request that have not ended: the engine's own."""

    def __init__(
        self, scheduler: Scheduler, choices: Mapping[Request, Choice], opened: Mapping[str, Sequence[Request]]
    ) -> None:
        self._scheduler = scheduler
        self._choices = choices
        self._opened = opened
        self._log = EventLog()
        self._parked: set[Request] = set()
        self._held: set[str] = set()

    def note_arrival(self, request: EngineRequest, now: float) -> None:
        facts = _facts_of(request)
        self._log.open(request.request_id, facts)
        self._note(request.request_id, now, 0, "arrived", facts.num_prompt_tokens, facts.num_choices)

    def note_held(self, request: EngineRequest, now: float) -> None:
        """It has arrived, and gets in line when its grammar is compiled."""
        self.note_arrival(request, now)
        self._held.add(request.request_id)
        self._note(request.request_id, now, 0, "waits_for_grammar")

    def note_open(self, request: EngineRequest, now: float) -> None:
        """It gets in line."""
        if request.request_id in self._held:
            self._held.remove(request.request_id)
        else:
            self.note_arrival(request, now)

    def note_end_held(self, request: EngineRequest, now: float, reason: str) -> None:
        self._held.discard(request.request_id)
        for index in range(request.num_choices):
            self._note(request.request_id, now, index, "finished", 0, 0, note=reason)
            self._log.end_choice(request.request_id, 0, reason)
        self._log.end(request.request_id)

    def note_refusal(self, request: EngineRequest, now: float, reason: str) -> None:
        self._note(request.request_id, now, 0, "refused", note=reason)
        self._log.end_choice(request.request_id, 0, "error")
        self._log.end(request.request_id)

    def note_plan(self, plan: StepPlan, preemptions: Iterable[Preemption], now: float) -> None:
        """A step has been planned, and is not submitted yet. ``preemptions``: those that made room for it."""
        for preemption in preemptions:
            self._note_preemption(preemption, plan.step_id, now)
        num_computing = len(plan.row_ids) - len(plan.forks)
        if plan.new_rows or plan.num_tokens > num_computing:
            self._note_rows(plan, plan.num_tokens - num_computing, now)
        if plan.new_rows:
            self._note_passed(plan.step_id, now)
        if self._scheduler.prefix_waits or self._parked:
            self._note_parked(plan.step_id, now)

    def note_first_token(self, choice: Choice, now: float) -> None:
        self._note(choice.request_id, now, choice.sequence.choice_index, "first_token")

    def note_timeout(self, request_id: str, now: float, reason: str) -> None:
        self._note(request_id, now, 0, "timed_out", note=reason)

    def note_end(self, choice: Choice, now: float, reason: str) -> None:
        """A choice has ended. ``reason``: how, and where that is an error, why."""
        sequence, request_id = choice.sequence, choice.request_id
        numbers = sequence.num_output_tokens, sequence.num_preemptions
        self._note(request_id, now, sequence.choice_index, "finished", *numbers, note=reason)
        self._log.end_choice(request_id, sequence.num_output_tokens, choice.finish_reason or "")

    def tell(self, events: deque[tuple[str, FlatEvent]] | None) -> None:
        """From now on put every event in ``events`` too; None: in nothing."""
        self._log.told = events

    def forget(self, request_id: str) -> None:
        """All choices of a request have ended: it stays in the log as long as there is room."""
        self._log.end(request_id)

    def traces(self, request_ids: Iterable[str] | None, count: int) -> list[RequestTrace]:
        """Of these requests, those that are known; or of the ``count`` that came last, the newest first, each with its
        last event alone and without its standing. What it costs follows what is told, not what is open."""
        if request_ids is None:
            traces = [self._log.trace(each, 1) for each in self._log.latest(count)]
        else:
            traces = [self._log.trace(each) for each in dict.fromkeys(request_ids)]
        found = [trace for trace in traces if trace is not None]
        for trace in found:
            sequences = self._opened.get(trace.request_id, ())
            trace.statuses = [sequence.status.value for sequence in sequences]
            if trace.request_id in self._held:
                trace.statuses = [Status.WAITING.value] * trace.facts.num_choices
            trace.num_generated_tokens += sum(sequence.num_output_tokens for sequence in sequences)
            if sequences and request_ids is not None:
                trace.standing = self._scheduler.standing(sequences[0])
        return found

    def _note_rows(self, plan: StepPlan, num_further: int, now: float) -> None:
        """Rows that begin, and those of several tokens, ``num_further`` tokens beside one a row in all. They stand at
        the end of the plan, so nobody who only decodes is looked at."""
        new = {row.row_id for row in plan.new_rows}
        forks = {fork.row_id for fork in plan.forks}
        drafted = {drafts.row_id for drafts in plan.drafts}
        num_new, place, places = len(new), len(plan.row_ids), list[int]()
        while num_new > 0 or num_further > 0:
            place -= 1
            is_new, count = plan.row_ids[place] in new, plan.counts[place]
            num_new -= is_new
            num_further -= max(0, count - 1)
            if is_new or (count > 1 and plan.row_ids[place] not in drafted):
                places.append(place)
        for place in reversed(places):
            request, row_id = self._scheduler.last_planned[place], plan.row_ids[place]
            self._note_row(request, plan, place, row_id in new, row_id in forks, now)

    def _note_row(self, request: Request, plan: StepPlan, place: int, is_new: bool, is_fork: bool, now: float) -> None:
        """Who begins or goes on in this step, or computes a further piece of its prompt. A beam that takes another's
        row over is no decision."""
        choice = self._choices[request]
        numbers: tuple[int, ...] = plan.starts[place], plan.counts[place]
        kind: EventKind = "chunk"
        if is_new and choice.scheduled is None:
            kind = "admitted"
            if is_fork or (request.group is not None and request.choice_index > 0):
                kind, numbers = "forked", numbers[:1]
        elif is_new:
            if request.num_preemptions == choice.num_resumed:
                return
            kind, choice.num_resumed = "resumed", request.num_preemptions
        self._note(choice.request_id, now, request.choice_index, kind, *numbers, step=plan.step_id)

    def _note_passed(self, step: int, now: float) -> None:
        """Those at the head of the line that others were admitted before."""
        for request in islice(self._scheduler.waiting, LOOKAHEAD):
            choice = self._choices[request]
            by = request.num_skips - choice.num_skips
            if by > 0:
                choice.num_skips = request.num_skips
                self._note(choice.request_id, now, request.choice_index, "passed", by, request.num_skips, step=step)

    def _note_parked(self, step: int, now: float) -> None:
        parked = set(self._scheduler.prefix_waits)
        for request in parked - self._parked:
            request_id = self._choices[request].request_id
            self._note(request_id, now, request.choice_index, "waits_for_prefix", step=step)
        self._parked = parked

    def _note_preemption(self, preemption: Preemption, step: int, now: float) -> None:
        request_id, index = split_sequence_id(preemption.request_id)
        numbers = preemption.num_freed_blocks, preemption.num_swapped_tokens, preemption.num_lost_tokens
        self._note(request_id, now, index, "preempted", *numbers, step=step, note=preemption.reason)

    def _note(
        self,
        request_id: str,
        now: float,
        choice: int,
        kind: EventKind,
        *numbers: int,
        step: int | None = None,
        note: str = "",
    ) -> None:
        if step is None:
            step = self._scheduler.counters.num_steps
        self._log.note(request_id, (now, step, choice, kind, note[:MAX_NOTE], *numbers))


def _facts_of(request: EngineRequest) -> RequestFacts:
    """Of one that is refused, too: a name of a tenant that is none is cut short."""
    return RequestFacts(
        request.arrival_time,
        len(request.prompt_token_ids),
        request.num_choices,
        str(request.tenant)[:MAX_TENANT_NAME],
        request.priority,
        request.start_by,
        request.end_by,
    )
