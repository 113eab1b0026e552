"""Reads from each plan what the scheduler has decided about requests, and writes it down with the time.

Nothing is asked of the scheduler while it plans: who was admitted, resumed or given a chunk stands in the plan, and who
was passed or set aside can be seen on those that wait. A step that only decodes costs a comparison.
"""

from collections.abc import Iterable, Mapping
from itertools import islice

from octavo.core.admission import LOOKAHEAD
from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import Preemption
from octavo.core.step import StepPlan
from octavo.engine.choice import Choice
from octavo.engine.messages import EngineRequest
from octavo.engine.traces import EventKind, EventLog, RequestTrace

MAX_NOTE = 300


class Decisions:
    """``choices``: the engine's own, of all open requests."""

    def __init__(self, scheduler: Scheduler, choices: Mapping[Request, Choice]) -> None:
        self._scheduler = scheduler
        self._choices = choices
        self._log = EventLog()
        self._parked: set[Request] = set()

    def note_arrival(self, request: EngineRequest, now: float) -> None:
        num_tokens = len(request.prompt_token_ids)
        self._log.open(request.request_id, request.arrival_time, num_tokens, request.num_choices)
        self._note(request.request_id, now, 0, "arrived", num_tokens, request.num_choices)

    def note_refusal(self, request: EngineRequest, now: float, reason: str) -> None:
        self.note_arrival(request, now)
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

    def forget(self, request_id: str) -> None:
        """All choices of a request have ended: it stays in the log as long as there is room."""
        self._log.end(request_id)

    def traces(self, request_ids: Iterable[str] | None, count: int) -> list[RequestTrace]:
        """Of these requests, those that are known; or of the ``count`` that came last, the newest first."""
        wanted = self._log.latest(count) if request_ids is None else request_ids
        found = {trace.request_id: trace for each in wanted if (trace := self._log.trace(each)) is not None}
        for sequence, choice in self._choices.items():
            trace = found.get(choice.request_id)
            if trace is not None:
                trace.statuses.append(sequence.status.value)
                trace.num_generated_tokens += sequence.num_output_tokens
        return list(found.values())

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
        request_id, _, index = preemption.request_id.rpartition("/")
        numbers = preemption.num_freed_blocks, preemption.num_swapped_tokens, preemption.num_lost_tokens
        self._note(request_id, now, int(index), "preempted", *numbers, step=step, note=preemption.reason)

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
