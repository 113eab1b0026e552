"""Prompts on some servers, answers on others: keys and values go from the one to the other in between."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.core.step import StepPlan
from octavo.sim.costs import CostModel, StepWork, served_seconds, work_of
from octavo.sim.front_line import FrontLine
from octavo.sim.recorder import Recorder, SLOs
from octavo.sim.recorder_split import HandOverRecorder
from octavo.sim.replay import Arrival, LandedStep, Replay, Server
from octavo.sim.replica import Expected, Replica, ServerSettings, move_seconds
from octavo.sim.requests import make_request
from octavo.sim.routers import least_loaded
from octavo.sim.traces.request import TracedRequest


@dataclass(frozen=True, slots=True)
class Split:
    """``num_prefill`` servers compute prompts and draw first tokens, ``num_decode`` all others. A prompt's keys and
    values take ``kv_bytes_per_token`` each; every server of the first kind sends at ``bytes_per_second``, one request
    after the other."""

    num_prefill: int
    num_decode: int
    kv_bytes_per_token: float
    bytes_per_second: float


class SplitSimulation:
    """Both kinds of servers have the same settings, and the least loaded of its kind gets a request. ``recorder``: what
    has come of them so far; the wait for the transfer is between the first token and the second."""

    def __init__(
        self,
        requests: Iterable[TracedRequest],
        settings: ServerSettings,
        costs: CostModel,
        split: Split,
        slos: SLOs | None = None,
    ) -> None:
        self._costs = costs
        self._split = split
        self._front = FrontLine(costs.front, split.num_prefill)
        kinds = [self._step_seconds] * split.num_prefill + [self._received_seconds] * split.num_decode
        self.replicas = [Replica(settings, seconds, self._refuse, move_seconds(costs)) for seconds in kinds]
        self.recorder = HandOverRecorder([replica.scheduler for replica in self.replicas], slos)
        self._coming: dict[Request, Expected] = {}
        self._next: dict[Request, Request] = {}
        self._link_free = [0.0] * split.num_prefill
        self._replay = Replay([replica.server for replica in self.replicas], self._arrivals(requests), self._route)

    def run(self, on_step: Callable[[LandedStep], None] | None = None) -> Recorder:
        """To the last token; ``on_step`` is told of each step when the recorder has been."""
        for step in self._replay.steps():
            self.recorder.land(step)
            self.replicas[step.place].clear_up(step.outcome)
            if step.place < self._split.num_prefill:
                for request in step.outcome.finished:
                    if request in self._next:
                        self._send(request, step)
            if on_step is not None:
                on_step(step)
        return self.recorder

    def _arrivals(self, requests: Iterable[TracedRequest]) -> Iterator[Arrival]:
        """The first part of each has one token to draw; the second goes on from there. What can never run is in one
        part, and refused as that."""
        for number, traced in enumerate(requests):
            whole = make_request(traced, number)
            if not self.replicas[-1].can_run(whole):
                first, part = whole, traced
            else:
                part = traced._replace(output=1, max_tokens=None)
                first = make_request(part, number)
                if traced.output > 1:
                    self._next[first] = whole
                    self._coming[whole] = Expected(traced, number)
                    self.recorder.expect(first, whole)
            self._coming[first] = Expected(part, number)
            self.recorder.arrive(first, traced.seconds)
            yield Arrival(self._front.pass_through(traced.seconds), first)

    def _route(self, request: Request, _servers: list[Server]) -> int:
        place = least_loaded(self.replicas[: self._split.num_prefill])
        self.replicas[place].expect(request, self._coming.pop(request))
        return place

    def _send(self, request: Request, step: LandedStep) -> None:
        """Its prompt is computed: keys and values go to the server that has the least to do now."""
        whole = self._next.pop(request)
        whole.token_ids.append(request.token_ids[-1])
        num_bytes = self._split.kv_bytes_per_token * request.num_prompt_tokens
        start = max(step.now, self._link_free[step.place])
        self._link_free[step.place] = start + num_bytes / self._split.bytes_per_second
        place = self._split.num_prefill + least_loaded(self.replicas[self._split.num_prefill :])
        self.replicas[place].expect(whole, self._coming.pop(whole))
        self._replay.deliver(self._link_free[step.place], place, whole)

    def _step_seconds(self, plan: StepPlan, _scheduler: Scheduler) -> float:
        return served_seconds(self._costs, work_of(plan))

    def _received_seconds(self, plan: StepPlan, scheduler: Scheduler) -> float:
        """What a prompt came with is there already: the step that takes it in computes its last token alone. One that
        was preempted has to be computed again."""
        work = work_of(plan)
        if work.num_chunks:
            work = _without_received(work, plan, scheduler)
        return served_seconds(self._costs, work)

    def _refuse(self, request: Request, reason: str) -> None:
        if request in self._next:
            del self._coming[self._next.pop(request)]
        self.recorder.reject(request, reason)


def _without_received(work: StepWork, plan: StepPlan, scheduler: Scheduler) -> StepWork:
    for request, start, count, samples in zip(
        scheduler.last_planned, plan.starts, plan.counts, plan.samples, strict=True
    ):
        if request.num_preemptions or (count == 1 and samples):
            continue
        work = work._replace(
            num_chunks=work.num_chunks - 1,
            chunk_tokens=work.chunk_tokens - count,
            chunk_context=work.chunk_context - start - count,
            chunk_pairs=work.chunk_pairs - count * start - count * (count + 1) // 2,
            num_decodes=work.num_decodes + samples,
            decode_context=work.decode_context + (start + count if samples else 0),
        )
    return work
