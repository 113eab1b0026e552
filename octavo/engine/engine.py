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
from octavo.core.scheduler_types import Preemption
from octavo.core.step import PendingStep, Runner, StepPlan
from octavo.core.step_times import note_step_seconds
from octavo.core.timing import Timed, untimed
from octavo.engine.choice import Choice
from octavo.engine.collecting import collect
from octavo.engine.deadlines import timeout_message
from octavo.engine.detokenizer import TokenPieces
from octavo.engine.grammars import PATIENCE_SECONDS, GrammarCompiler, Grammars
from octavo.engine.intake import Intake
from octavo.engine.interface import EngineLimits, StartListener, nobody
from octavo.engine.log_format import named
from octavo.engine.messages import EngineOutputs, EngineRequest, EngineStats, StepSeconds
from octavo.engine.open_requests import OpenRequests
from octavo.engine.snapshot import Swaps, take_snapshot
from octavo.engine.traces import RequestTrace
from octavo.engine.watch import Watch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is made of. ``clock``: ``steady_time``; ``draw_seed``: see Intake;
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
    """``plan_seconds``: it took to plan."""

    plan: StepPlan
    time: float
    plan_seconds: float
    pending: PendingStep


class Engine:
    """Implements ``engine.interface.EngineLoop``."""

    def __init__(self, parts: EngineParts) -> None:
        self._scheduler = parts.scheduler
        self._requests = OpenRequests(parts.scheduler, parts.pieces, Grammars(parts.grammars), parts.clock)
        self._schedule = parts.timed("plan", parts.scheduler.schedule)
        self._stop_check = parts.timed("detokenize", partial(_check_stops, self._requests.choices))
        self.watch = Watch(parts.scheduler, self._requests, parts.clock)
        self._keeping = parts.scheduler.kv.keeping
        self._runner = parts.runner
        self._clock = parts.clock
        self._swaps = Swaps(parts.block_bytes)
        self._intake = Intake(parts.scheduler, parts.vocab_size, parts.eos_token_ids, parts.draw_seed)
        self._pending: deque[_Issued] = deque()
        self._landed = 0.0
        """When the last step landed."""
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
        requests = self._requests
        if request.request_id in requests:
            in_use = InvalidRequestError(f"request id {request.request_id!r} is in use", "request_id")
            requests.refuse_beside(request, in_use)
            return
        requests.deadlines.add(request)
        try:
            if not requests.hold(request):
                self._admit(request)
        except InvalidRequestError as error:
            requests.refuse(request, error)

    def _admit(self, request: EngineRequest) -> None:
        """Let a request get in line.

        Raises:
            InvalidRequestError: it can never run.
        """
        sequences = self._intake.admit(request)
        self._requests.open(request, sequences)
        self._scheduler.add(sequences[0], request.cache_salt, sequences[1:], request.num_open_tokens)

    def abort(self, request_id: str) -> None:
        """End every choice of a request that has not ended; unknown ids are ignored. Whoever was told at its time that
        this is over is gone by now: so it ended by its time."""
        self._end_overdue(self._clock())
        held = self._requests.grammars.take(request_id)
        if held is not None:
            self._requests.end_held(held, Status.ABORTED)
            self._requests.endings.num_aborted += 1
        sequences = list(self._requests.sequences.get(request_id, ()))
        self._requests.endings.num_aborted += bool(sequences)
        for sequence in sequences:
            self._scheduler.abort(sequence)
            self._requests.close(sequence)

    def has_work(self) -> bool:
        if self._scheduler.has_work or self._requests.news.deltas or self._requests.grammars.is_ready:
            return True
        return self.idle_seconds() == 0.0

    def idle_seconds(self) -> float | None:
        if self._requests.grammars.is_waiting:
            return PATIENCE_SECONDS
        next_end = self._keeping.pins.next_end
        return None if next_end == inf else max(0.0, next_end - self._clock())

    def step(self, on_start: StartListener = nobody) -> EngineOutputs:
        """Plan as far ahead as allowed, then wait for the oldest step and report what it brought."""
        now = self._clock()
        self._scheduler.tell_time(now)
        self._end_overdue(now)
        if self._requests.grammars.is_waiting:
            self._admit_ready()
            now = self._clock()
        while len(self._pending) < self._scheduler.config.max_steps_in_flight:
            plan = self._schedule()
            if plan is None:
                break
            now = self._submit(plan, now, on_start)
        if self._pending:
            self._land(self._pending.popleft())
        return self._requests.take_news()

    def _admit_ready(self) -> None:
        """Let those get in line whose grammars are there; with nothing else to do, wait a moment for one."""
        if not self._scheduler.has_work and not self._requests.news.deltas:
            self._requests.grammars.wait()
        for request, error in self._requests.grammars.take_ready():
            try:
                if error is not None:
                    raise error
                self._admit(request)
            except InvalidRequestError as refusal:
                self._requests.refuse(request, refusal)

    def _end_overdue(self, now: float) -> None:
        """End the requests whose time is over, wherever they stand, and tell their clients."""
        for request, kind in self._requests.deadlines.take_overdue(now):
            held = self._requests.grammars.take(request.request_id)
            if held is None and kind == "queue" and request.request_id not in self._requests.unstarted:
                continue
            self._requests.endings.timed_out[kind] += 1
            error = timeout_message(request, kind, now)
            self._requests.decisions.note_timeout(request.request_id, now, error)
            if held is not None:
                for delta in self._requests.end_held(held, Status.FAILED):
                    delta.error, delta.timeout = error, kind
                continue
            for sequence in list(self._requests.sequences[request.request_id]):
                self._scheduler.abort(sequence)
                self._requests.close(sequence, error).timeout = kind

    def _submit(self, plan: StepPlan, began: float, on_start: StartListener = nobody) -> float:
        """``began``: when planning did. Returns when it was over."""
        now = self._clock()
        self._requests.decisions.note_plan(plan, self._take_preemptions(now), now)
        if plan.new_rows:
            started = self._requests.note_scheduled(plan, self._scheduler.running, now)
            if started:
                on_start(started)
        self._pending.append(_Issued(plan, now, now - began, self._runner.submit(plan)))
        return now

    def _land_all(self) -> None:
        while self._pending:
            self._land(self._pending.popleft())

    def _take_preemptions(self, now: float) -> list[Preemption]:
        preemptions = self._scheduler.take_preemptions()
        for preemption in preemptions:
            self._requests.note_preemption(preemption, now)
            request_id, num_blocks, num_swapped, num_lost, _ = preemption
            logger.info(
                "preempted request %s: %d blocks freed, %d tokens swapped out, %d tokens to compute again",
                *(request_id, num_blocks, num_swapped, num_lost),
                extra=named(engine_id=request_id),
            )
        return preemptions

    def stats(self) -> EngineStats:
        """One consistent snapshot, as of now."""
        self._keeping.tell_time(self._clock())
        return take_snapshot(self._scheduler, self._swaps, self._requests.endings, self._requests.head_since)

    def reset_prefix_cache(self) -> None:
        """Forget every cached block; of those on disk nothing is left when this returns."""
        self._scheduler.reset_prefix_cache()
        if self._scheduler.kv.config.num_disk_slots:
            self._land_all()
            self._submit(self._scheduler.plan_moves(), self._clock())
            self._land_all()

    def pins(self) -> list[PinInfo]:
        self._keeping.tell_time(self._clock())
        return self._keeping.pins.infos()

    def traces(self, request_ids: Sequence[str] | None, count: int) -> list[RequestTrace]:
        return self._requests.decisions.traces(request_ids, count)

    def unpin(self, pin_id: str) -> bool:
        self._keeping.tell_time(self._clock())
        return self._keeping.pins.release(pin_id)

    def close(self) -> None:
        """End every request, take the prefix cache to disk where there is a tier for it, and give up its file."""
        for request_id in self._requests.ids:
            self.abort(request_id)
        self._requests.grammars.close()
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
        seconds = self._measure(issued)
        if issued.plan.swap_outs or issued.plan.swap_ins:
            self._swaps.note(result.seconds)
        outcome = self._scheduler.update(result, self._stop_check)
        collect(self._requests, issued.plan, result, outcome, self._clock())
        sample = result.seconds.sample
        compute = max(0.0, seconds - sample)  # what was drawn before the step before it was read is not of its seconds
        reply = self._clock() - self._landed
        self._requests.news.steps.append(StepSeconds(issued.plan_seconds, compute, sample, reply))

    def _measure(self, issued: _Issued) -> float:
        """The seconds that a step took, which begins where the one before it ends, if it was submitted earlier."""
        now = self._clock()
        seconds = now - max(issued.time, self._landed)
        self._landed = now
        note_step_seconds(self._scheduler, issued.plan, seconds)
        if self.watch.is_on:
            self.watch.note_step(issued.plan, seconds)
        return seconds

    def _recover(self, error: Exception) -> None:
        """A step failed: nothing of it counts, and its requests are tried again one at a time. One that fails alone
        ends with an error to its client (design, Decided 1)."""
        self._pending.clear()
        self._runner.reset()
        for sequence in self._scheduler.roll_back():
            self._requests.fail(sequence, error)
