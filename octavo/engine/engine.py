"""The engine: requests in, steps, answers out. One thread calls it."""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from octavo.core.errors import InvalidRequestError
from octavo.core.pin_types import PinInfo
from octavo.core.request import Request, Status
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import Preemption, StepOutcome
from octavo.core.step import PendingStep, Runner, StepPlan, StepResult
from octavo.core.timing import Timed, untimed
from octavo.engine.choice import Choice
from octavo.engine.deadlines import Deadlines, timeout_message
from octavo.engine.decisions import Decisions
from octavo.engine.detokenizer import TokenPieces
from octavo.engine.grammars import PATIENCE_SECONDS, GrammarCompiler, Grammars
from octavo.engine.intake import Intake
from octavo.engine.interface import EngineLimits, StartListener, nobody
from octavo.engine.messages import EngineOutputs, EngineRequest, EngineStats, OutputDelta
from octavo.engine.snapshot import Endings, take_snapshot
from octavo.engine.traces import RequestTrace

logger = logging.getLogger(__name__)

MIN_MEASURED_TOKENS = 64
"""Steps of fewer tokens say little of what a token of a prompt costs."""


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is made of. ``clock``: seconds since the epoch (``time.time``); ``draw_seed``: see Intake;
    ``block_bytes``: of keys and values, for the statistics; ``timed``: told of the parts "plan" and "detokenize";
    ``grammars``: for requests with constraints, which are refused without."""

    scheduler: Scheduler
    runner: Runner
    pieces: TokenPieces
    eos_token_ids: frozenset[int]
    vocab_size: int
    clock: Callable[[], float]
    draw_seed: Callable[[], int]
    block_bytes: int
    timed: Timed = untimed
    grammars: GrammarCompiler | None = None


def _check_stops(
    choices: Mapping[Request, Choice], sequences: Sequence[Request], token_ids: Sequence[int]
) -> dict[Request, str]:
    """Implements ``StopCheck``."""
    stops = {}
    for sequence, token_id in zip(sequences, token_ids, strict=True):
        stop = choices[sequence].check_stop(token_id)
        if stop is not None:
            stops[sequence] = stop
    return stops


@dataclass(frozen=True, slots=True)
class _Issued:
    plan: StepPlan
    time: float
    pending: PendingStep


class Engine:
    """Implements ``engine.interface.EngineLoop``."""

    def __init__(self, parts: EngineParts) -> None:
        self._scheduler = parts.scheduler
        self._choices: dict[Request, Choice] = {}
        self._schedule = parts.timed("plan", parts.scheduler.schedule)
        self._stop_check = parts.timed("detokenize", partial(_check_stops, self._choices))
        self._keeping = parts.scheduler.kv.keeping
        self._runner = parts.runner
        self._pieces = parts.pieces
        self._clock = parts.clock
        self._block_bytes = parts.block_bytes
        self._intake = Intake(parts.scheduler, parts.vocab_size, parts.eos_token_ids, parts.draw_seed)
        self._grammars = Grammars(parts.grammars)
        self._open: dict[str, list[Request]] = {}
        self._waiting: set[str] = set()
        """Open requests of which nothing has been scheduled yet."""
        self._deadlines = Deadlines()
        self._decisions = Decisions(parts.scheduler, self._choices, self._open)
        self._pending: deque[_Issued] = deque()
        self._landed = 0.0
        """When the last step landed."""
        self._news = EngineOutputs()
        self._endings = Endings()
        kv = parts.scheduler.kv.config
        self.limits = EngineLimits(
            max_model_len=parts.scheduler.door.max_tokens_per_sequence,
            kv_cache_tokens=kv.num_token_slots,
            block_size=kv.block_size,
            vocab_size=parts.vocab_size,
        )

    def add_request(self, request: EngineRequest) -> None:
        """Accept a request, or answer it with an error in the next outputs; never raises for what a client sent."""
        self._scheduler.tell_time(self._clock())
        try:
            if request.request_id in self._open or request.request_id in self._grammars:
                raise InvalidRequestError(f"request id {request.request_id!r} is in use", "request_id")
            if self._grammars.hold(request):
                self._deadlines.add(request)
                return
        except InvalidRequestError as error:
            self._refuse(request, error)
            return
        self._deadlines.add(request)
        self._admit(request)

    def _admit(self, request: EngineRequest) -> None:
        """Let a request get in line, or refuse it."""
        try:
            sequences = self._intake.admit(request)
        except InvalidRequestError as error:
            self._grammars.drop(request.request_id)
            self._deadlines.remove(request.request_id)
            self._refuse(request, error)
            return
        self._open[request.request_id] = sequences
        self._waiting.add(request.request_id)
        self._decisions.note_arrival(request, self._clock())
        for sequence in sequences:
            self._choices[sequence] = Choice(request.request_id, sequence, self._pieces, request.arrival_time)
        self._scheduler.add(sequences[0], request.cache_salt, sequences[1:], request.num_open_tokens)

    def abort(self, request_id: str) -> None:
        """End every choice of a request that has not ended; unknown ids are ignored. Whoever was told at its time that
        this is over is gone by now: so it ended by its time."""
        self._end_overdue(self._clock())
        held = self._grammars.take(request_id)
        if held is not None:
            self._end_held(held, Status.ABORTED)
            self._endings.num_aborted += 1
        sequences = list(self._open.get(request_id, ()))
        self._endings.num_aborted += bool(sequences)
        for sequence in sequences:
            self._scheduler.abort(sequence)
            self._close(sequence)

    def has_work(self) -> bool:
        if self._scheduler.has_work or self._news.deltas or self._grammars.is_ready:
            return True
        return self.idle_seconds() == 0.0

    def idle_seconds(self) -> float | None:
        if self._grammars.is_waiting:
            return PATIENCE_SECONDS
        next_end = self._keeping.pins.next_end
        return None if next_end == inf else max(0.0, next_end - self._clock())

    def step(self, on_start: StartListener = nobody) -> EngineOutputs:
        """Plan as far ahead as allowed, then wait for the oldest step and report what it brought."""
        now = self._clock()
        self._scheduler.tell_time(now)
        self._end_overdue(now)
        if self._grammars.is_waiting:
            self._admit_ready()
        while len(self._pending) < self._scheduler.config.max_steps_in_flight:
            plan = self._schedule()
            if plan is None:
                break
            self._submit(plan, on_start)
        if self._pending:
            self._land(self._pending.popleft())
        outputs, self._news = self._news, EngineOutputs()
        return outputs

    def _admit_ready(self) -> None:
        """Let those get in line whose grammars are there; with nothing else to do, wait a moment for one."""
        if not self._scheduler.has_work and not self._news.deltas:
            self._grammars.wait()
        for request, error in self._grammars.take_ready():
            if error is None:
                self._admit(request)
            else:
                self._deadlines.remove(request.request_id)
                self._refuse(request, error)

    def _end_held(self, request: EngineRequest, status: Status) -> list[OutputDelta]:
        """End a request of which there are no sequences yet; one delta a choice."""
        self._deadlines.remove(request.request_id)
        deltas = [
            OutputDelta(request.request_id, index, finish_reason=status.value) for index in range(request.num_choices)
        ]
        self._news.deltas += deltas
        return deltas

    def _end_overdue(self, now: float) -> None:
        """End the requests whose time is over, wherever they stand, and tell their clients."""
        for request, kind in self._deadlines.take_overdue(now):
            held = self._grammars.take(request.request_id)
            if held is None and kind == "queue" and request.request_id not in self._waiting:
                continue
            self._endings.timed_out[kind] += 1
            error = timeout_message(request, kind, now)
            if held is not None:
                for delta in self._end_held(held, Status.FAILED):
                    delta.error, delta.timeout = error, kind
                continue
            self._decisions.note_timeout(request.request_id, now, error)
            for sequence in list(self._open[request.request_id]):
                self._scheduler.abort(sequence)
                self._close(sequence, error).timeout = kind

    def _submit(self, plan: StepPlan, on_start: StartListener = nobody) -> None:
        now = self._clock()
        self._decisions.note_plan(plan, self._take_preemptions(), now)
        if plan.new_rows:
            started = self._note_scheduled(plan, now)
            if started:
                on_start(started)
        self._pending.append(_Issued(plan, now, self._runner.submit(plan)))

    def _note_scheduled(self, plan: StepPlan, now: float) -> list[str]:
        """Which choices this step is the first of; the requests of which it is."""
        started = []
        new = {row.row_id for row in plan.new_rows}
        for sequence in self._scheduler.running:
            if sequence.row_id not in new:
                continue
            choice = self._choices[sequence]
            if choice.scheduled is None:
                choice.scheduled = now
            if choice.request_id in self._waiting:
                self._waiting.remove(choice.request_id)
                started.append(choice.request_id)
        return started

    def _land_all(self) -> None:
        while self._pending:
            self._land(self._pending.popleft())

    def _take_preemptions(self) -> list[Preemption]:
        preemptions = self._scheduler.take_preemptions()
        for request_id, num_blocks, num_swapped, num_lost, _ in preemptions:
            logger.info(
                "preempted request %s: %d blocks freed, %d tokens swapped out, %d tokens to compute again",
                *(request_id, num_blocks, num_swapped, num_lost),
            )
        return preemptions

    def stats(self) -> EngineStats:
        """One consistent snapshot, as of now."""
        self._keeping.tell_time(self._clock())
        return take_snapshot(self._scheduler, self._block_bytes, self._endings)

    def reset_prefix_cache(self) -> None:
        """Forget every cached block; of those on disk nothing is left when this returns."""
        self._scheduler.reset_prefix_cache()
        if self._scheduler.kv.config.num_disk_slots:
            self._land_all()
            self._submit(self._scheduler.plan_moves())
            self._land_all()

    def pins(self) -> list[PinInfo]:
        self._keeping.tell_time(self._clock())
        return self._keeping.pins.infos()

    def traces(self, request_ids: Sequence[str] | None, count: int) -> list[RequestTrace]:
        return self._decisions.traces(request_ids, count)

    def unpin(self, pin_id: str) -> bool:
        self._keeping.tell_time(self._clock())
        return self._keeping.pins.release(pin_id)

    def close(self) -> None:
        """End every request, take the prefix cache to disk where there is a tier for it, and give up its file."""
        for request_id in [*self._open, *self._grammars.held_ids]:
            self.abort(request_id)
        self._grammars.close()
        self._land_all()
        try:
            plan = self._scheduler.plan_last()
            if plan is not None:
                self._runner.submit(plan).result()
                num_blocks = len(plan.disk.writes)
                logger.info("The prefix cache has been taken to disk: %d blocks were written.", num_blocks)
        finally:
            self._runner.close()

    def _land(self, issued: _Issued) -> None:
        try:
            result = issued.pending.result()
        except Exception as error:  # noqa: BLE001 - whatever one request provokes, the loop goes on
            self._recover(error)
            return
        self._measure(issued)
        outcome = self._scheduler.update(result, self._stop_check)
        self._collect(issued, result, outcome)

    def _measure(self, issued: _Issued) -> None:
        """What computing a token costs, from steps that are mostly prompt (see PreemptionCosts), and what a row of an
        answer does, from those that have no other (see StepCosts); and what prompts cost beside answers (see Pace). A
        step begins where the one before it ends, if it was submitted earlier."""
        plan, costs, now = issued.plan, self._scheduler.population.costs, self._clock()
        num_tokens, seconds = plan.num_tokens, now - max(issued.time, self._landed)
        self._landed = now
        self._scheduler.pace.note(plan, seconds)
        if num_tokens >= MIN_MEASURED_TOKENS:
            seconds_per_token = seconds / num_tokens
            known = costs.seconds_per_token or seconds_per_token
            costs.seconds_per_token = known + (seconds_per_token - known) / 8
        num_drafts = sum(len(drafts.token_ids) for drafts in plan.drafts)
        if num_tokens == len(plan.row_ids) + num_drafts and not plan.forks:
            self._scheduler.speculation.costs.note(num_tokens, seconds)

    def _collect(self, issued: _Issued, result: StepResult, outcome: StepOutcome) -> None:
        """Turn what landed into deltas and times. A search has no time to its first token and none between tokens: they
        come all at once, at its end."""
        now = self._clock()
        choices, deltas = self._choices, self._news.deltas
        self._news.iteration_tokens += issued.plan.num_tokens
        if result.prompt_logprobs:
            self._collect_prompts(issued, result, outcome)
        for sequence, token_id in zip(outcome.sampled, outcome.token_ids, strict=True):
            choice = choices[sequence]
            choice.add_token(token_id, result.logprobs.get(sequence.row_id) if result.logprobs else None)
            self._note_times(choice, now)
            if sequence in outcome.further:
                self._collect_further(choice, outcome.further[sequence], result, now)
            if sequence.is_finished:
                self._close(sequence)
            else:
                deltas.append(choice.take_delta())
        for sequence, hypothesis in outcome.hypotheses.items():
            choice = self._choices[sequence]
            choice.take_hypothesis(hypothesis)
            self._close(sequence)
        for sequence, fault in outcome.failed.items():
            self._fail(sequence, InvalidRequestError(fault.message) if fault.invalid else fault.message)

    def _collect_further(self, choice: Choice, token_ids: Sequence[int], result: StepResult, now: float) -> None:
        """What a row with drafts brought after its first token: no time lies between these."""
        entries = result.further_logprobs.get(choice.sequence.row_id, ())
        for place, token_id in enumerate(token_ids):
            choice.add_token(token_id, entries[place] if entries else None)
            self._note_times(choice, now)

    def _collect_prompts(self, issued: _Issued, result: StepResult, outcome: StepOutcome) -> None:
        for sequence, start in zip(outcome.landed, issued.plan.starts, strict=True):
            choice = self._choices.get(sequence)
            if choice is not None and sequence.row_id in result.prompt_logprobs:
                choice.add_prompt_logprobs(start + 1, result.prompt_logprobs[sequence.row_id])

    def _note_times(self, choice: Choice, now: float) -> None:
        if choice.last_token is None:
            choice.first_token = now
            self._decisions.note_first_token(choice, now)
            self._news.first_token_seconds.append(now - choice.arrival)
        else:
            self._news.token_intervals.append(now - choice.last_token)
        choice.last_token = now

    def _close(self, sequence: Request, error: str | None = None) -> OutputDelta:
        """A sequence has ended: its last delta, its times, and no trace of it. ``error``: its client is told that it
        has failed, and why."""
        choice = self._choices.pop(sequence)
        delta = choice.take_delta()
        if error is not None:
            delta.finish_reason = choice.finish_reason = Status.FAILED.value
            delta.error = error
        now = self._clock()
        self._news.deltas.append(delta)
        self._news.finished.append(choice.times(now))
        self._decisions.note_end(choice, now, error or choice.finish_reason or "")
        siblings = self._open[choice.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._open[choice.request_id]
            self._waiting.discard(choice.request_id)
            self._deadlines.remove(choice.request_id)
            self._grammars.drop(choice.request_id)
            self._decisions.forget(choice.request_id)
        return delta

    def _recover(self, error: Exception) -> None:
        """A step failed: nothing of it counts, and its requests are tried again one at a time. One that fails alone
        ends with an error to its client (design, Decided 1)."""
        self._pending.clear()
        self._runner.reset()
        for sequence in self._scheduler.roll_back():
            self._fail(sequence, error)

    def _fail(self, sequence: Request, error: Exception | str) -> None:
        """Tell the client of a sequence that has failed why. ``error``: what its step raised, or one sentence."""
        self._endings.num_failed += 1
        if isinstance(error, InvalidRequestError):
            self._close(sequence, error.message).invalid_param = error.param or ""
        else:
            if isinstance(error, Exception):  # one that nobody has foreseen
                logger.error("request %s failed", sequence.request_id, exc_info=error)
            self._close(sequence, f"the model could not compute this request: {error}")

    def _refuse(self, request: EngineRequest, error: InvalidRequestError) -> None:
        self._decisions.note_refusal(request, self._clock(), error.message)
        reason = error.param or "request"
        self._endings.rejected[reason] += 1
        self._news.deltas.append(
            OutputDelta(
                request.request_id,
                index=0,
                finish_reason=Status.FAILED.value,
                error=error.message,
                invalid_param=error.param or "",
            )
        )
