"""Requests from their arrival to their end: what is known of each, and what their clients are told."""

import logging
from collections.abc import Callable, Iterable, Sequence

from octavo.core.errors import InvalidRequestError
from octavo.core.request import Request, Status
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import Preemption
from octavo.core.step import StepPlan
from octavo.engine.choice import Choice, split_sequence_id
from octavo.engine.deadlines import Deadlines
from octavo.engine.decisions import Decisions
from octavo.engine.detokenizer import TokenPieces
from octavo.engine.grammars import Grammars
from octavo.engine.log_format import named
from octavo.engine.messages import EngineOutputs, EngineRequest, OutputDelta
from octavo.engine.snapshot import Endings

logger = logging.getLogger(__name__)


class OpenRequests:
    """``choices``: of sequences that have not ended; ``sequences``: these, by request id; ``unstarted``: ids of
    requests of which nothing has been scheduled yet; ``news``: what has not been reported yet.

    A request whose grammar is being compiled is open to its client, but has no sequences: ``grammars`` holds it.
    """

    def __init__(
        self, scheduler: Scheduler, pieces: TokenPieces, grammars: Grammars, clock: Callable[[], float]
    ) -> None:
        self._scheduler = scheduler
        self._pieces = pieces
        self._clock = clock
        self.grammars = grammars
        self.choices: dict[Request, Choice] = {}
        self.sequences: dict[str, list[Request]] = {}
        self.unstarted: set[str] = set()
        self.deadlines = Deadlines()
        self.decisions = Decisions(scheduler, self.choices, self.sequences)
        self.endings = Endings()
        self.news = EngineOutputs()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self.sequences or request_id in self.grammars

    @property
    def ids(self) -> list[str]:
        return [*self.sequences, *self.grammars.held_ids]

    def take_news(self) -> EngineOutputs:
        news, self.news = self.news, EngineOutputs()
        return news

    def open(self, request: EngineRequest, sequences: list[Request]) -> None:
        """A request gets in line, with these sequences for its choices."""
        self.sequences[request.request_id] = sequences
        self.unstarted.add(request.request_id)
        self.decisions.note_open(request, self._clock())
        for sequence in sequences:
            self.choices[sequence] = Choice(request.request_id, sequence, self._pieces, request.arrival_time)

    def hold(self, request: EngineRequest) -> bool:
        """Whether the request has to wait for its grammar. Raises as ``Grammars.hold``."""
        is_held = self.grammars.hold(request)
        if is_held:
            self.decisions.note_held(request, self._clock())
        return is_held

    def refuse(self, request: EngineRequest, error: InvalidRequestError) -> None:
        """It never gets in line: its client is told why."""
        self.grammars.drop(request.request_id)
        self.deadlines.remove(request.request_id)
        self.decisions.note_open(request, self._clock())
        self._tell_refusal(request, error)

    def refuse_beside(self, request: EngineRequest, error: InvalidRequestError) -> None:
        """Refuse one that leaves alone whatever else is open under its id."""
        self.decisions.note_arrival(request, self._clock())
        self._tell_refusal(request, error)

    def _tell_refusal(self, request: EngineRequest, error: InvalidRequestError) -> None:
        self.decisions.note_refusal(request, self._clock(), error.message)
        reason = error.param or "request"
        self.endings.rejected[reason] += 1
        self.news.deltas.append(
            OutputDelta(
                request.request_id,
                index=0,
                finish_reason=Status.FAILED.value,
                error=error.message,
                invalid_param=error.param or "",
                invalid_code=error.code,
            )
        )

    def note_scheduled(self, plan: StepPlan, running: Iterable[Request], now: float) -> list[str]:
        """Which choices this step is the first of; the requests of which it is."""
        started = []
        new = {row.row_id for row in plan.new_rows}
        for sequence in running:
            if sequence.row_id not in new:
                continue
            choice = self.choices[sequence]
            if choice.scheduled is None:
                choice.scheduled = now
            if choice.request_id in self.unstarted:
                self.unstarted.remove(choice.request_id)
                started.append(choice.request_id)
        return started

    def note_preemption(self, preemption: Preemption, now: float) -> None:
        request_id, index = split_sequence_id(preemption.request_id)
        for sequence in self.sequences.get(request_id, ()):
            if sequence.choice_index == index:
                self.choices[sequence].waiting_since = now

    @property
    def head_since(self) -> float | None:
        """Since when the first in line waits, or a long prompt that was set aside, if it has waited longer."""
        heads = self._scheduler.waiting.peek(), self._scheduler.population.held_long.peek()
        return min((self.choices[head].waiting_since for head in heads if head is not None), default=None)

    def end_held(self, request: EngineRequest, status: Status) -> Sequence[OutputDelta]:
        """End a request of which there are no sequences yet; one delta a choice."""
        self.deadlines.remove(request.request_id)
        self.decisions.note_end_held(request, self._clock(), status.value)
        deltas = [
            OutputDelta(request.request_id, index, finish_reason=status.value) for index in range(request.num_choices)
        ]
        self.news.deltas += deltas
        return deltas

    def close(self, sequence: Request, error: str | None = None) -> OutputDelta:
        """A sequence has ended: its last delta, its times, and no trace of it. ``error``: its client is told that it
        has failed, and why."""
        choice = self.choices.pop(sequence)
        delta = choice.take_delta()
        if error is not None:
            delta.finish_reason = choice.finish_reason = Status.FAILED.value
            delta.error = error
        now = self._clock()
        self.news.deltas.append(delta)
        self.news.finished.append(choice.times(now))
        self.decisions.note_end(choice, now, error or choice.finish_reason or "")
        siblings = self.sequences[choice.request_id]
        siblings.remove(sequence)
        if not siblings:
            self._forget(choice.request_id)
        return delta

    def fail(self, sequence: Request, error: Exception | str) -> None:
        """Tell the client of a sequence that has failed why. ``error``: what its step raised, or one sentence."""
        self.endings.num_failed += 1
        if isinstance(error, InvalidRequestError):
            delta = self.close(sequence, error.message)
            delta.invalid_param, delta.invalid_code = error.param or "", error.code
            return
        if isinstance(error, Exception):  # one that nobody has foreseen
            engine_id = sequence.request_id
            logger.error("request %s failed", engine_id, exc_info=error, extra=named(engine_id=engine_id))
        self.close(sequence, f"the model could not compute this request: {error}")

    def _forget(self, request_id: str) -> None:
        del self.sequences[request_id]
        self.unstarted.discard(request_id)
        self.deadlines.remove(request_id)
        self.grammars.drop(request_id)
        self.decisions.forget(request_id)
