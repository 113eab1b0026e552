"""What comes of a replay, request by request and step by step, in memory that does not grow with its length."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.sim.gaps import LongestSteps
from octavo.sim.quantiles import Quantiles
from octavo.sim.replay import LandedStep
from octavo.sim.series import Series

LATENCIES = ("ttft", "itl", "tpot", "e2el", "queue")
OBJECTIVES = ("ttft", "itl", "tpot", "e2el")
"""What an SLO can be set for; ``itl`` is that of a request's longest gap."""

SLOs = Mapping[str, float]
"""Of ``OBJECTIVES``, the most milliseconds that each may have."""


@dataclass(slots=True)
class OpenRequest:
    """A request that has not ended. ``last``: when it drew its last token outside the decode batch; ``first_step``: the
    step after that of its first token; ``longest``: of its gaps outside the batch."""

    due: float
    started: float | None = None
    first: float | None = None
    first_step: int = 0
    last: float = 0.0
    longest: float = 0.0


@dataclass(slots=True)
class ServerRecord:
    """``members`` of the decode batch in the step that landed last, at ``now``; ``longest``: see LongestSteps."""

    num_steps: int = 0
    now: float = 0.0
    members: list[Request] = field(default_factory=list)
    num_departures: int = 0
    longest: LongestSteps = field(default_factory=LongestSteps)


class Recorder:
    """Told of every request that comes, and of every step that lands.

    All that decode draw a token in each step, so the gap between two tokens of a member of the decode batch is that
    between two steps, and is counted once for all of them; only those that come in or have fallen behind are looked at.
    """

    def __init__(self, schedulers: list[Scheduler], slos: SLOs | None = None) -> None:
        self.schedulers = schedulers
        self.slos = dict(slos or {})
        self.latencies = {name: Quantiles() for name in LATENCIES}
        self.series = Series(schedulers)
        self.rejected: Counter[str] = Counter()
        self.num_arrived = 0
        self.num_completed = 0
        self.num_good = 0
        self.num_preempted = 0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.computed_tokens = 0
        self.busy_seconds = 0.0
        self.first_due: float | None = None
        self.last_end = 0.0
        self._open: dict[Request, OpenRequest] = {}
        self._servers = [ServerRecord() for _ in schedulers]
        self._is_idle = False

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def seconds(self) -> float:
        """From the first arrival to the last end; 0 where nothing has ended."""
        return max(0.0, self.last_end - (self.first_due or 0.0))

    def arrive(self, request: Request, due: float) -> None:
        self._open[request] = OpenRequest(due)
        self.num_arrived += 1
        if self.first_due is None:
            self.first_due = due

    def reject(self, request: Request, reason: str) -> None:
        del self._open[request]
        self.rejected[reason] += 1

    def land(self, step: LandedStep) -> None:
        """A step has landed."""
        server, outcome = self._servers[step.place], step.outcome
        gap = step.now - server.now
        if self._is_idle:
            self.series.stand_idle(step.start)
        server.num_steps += 1
        server.longest.add(server.num_steps, gap)
        self.busy_seconds += step.now - step.start
        self.output_tokens += len(outcome.token_ids)
        self.computed_tokens += step.plan.num_tokens
        members = outcome.landed[: outcome.num_members]
        self._note_departures(server, members, step)
        if members:
            self.latencies["itl"].add(gap, len(members))
        for request in outcome.landed[outcome.num_members :]:
            self._land_other(self._open[request], request, server, step)
        for request in outcome.finished:
            self._end(request, server, step.now)
        server.now = step.now
        server.members = members
        if step.now >= self.series.next_due:
            self.series.look(step.now)
        self._is_idle = self._has_nothing_to_do()

    def _has_nothing_to_do(self) -> bool:
        """Nowhere; the next request may be known, but has not come."""
        return len(self._open) <= 1 and not any(scheduler.has_work for scheduler in self.schedulers)

    def _note_departures(self, server: ServerRecord, members: list[Request], step: LandedStep) -> None:
        """Those that were members when the last step landed, and were planned as such no more."""
        num_departures = self.schedulers[step.place].running.batch.num_departures
        if num_departures != server.num_departures:
            server.num_departures = num_departures
            for request in set(server.members).difference(members):
                if request in self._open:
                    self._open[request].last = server.now

    def _land_other(self, open_: OpenRequest, request: Request, server: ServerRecord, step: LandedStep) -> None:
        """A row that was no member: of a prompt, or of an answer that had fallen behind."""
        if open_.started is None:
            open_.started = step.start
            self.latencies["queue"].add(step.start - open_.due)
        if not request.num_output_tokens:
            return
        if open_.first is None:
            open_.first, open_.first_step = step.now, server.num_steps + 1
            self.latencies["ttft"].add(step.now - open_.due)
        elif self._drew(request, step):
            gap = step.now - open_.last
            self.latencies["itl"].add(gap)
            open_.longest = max(open_.longest, gap)
        else:
            return
        open_.last = step.now

    def _drew(self, request: Request, step: LandedStep) -> bool:
        """A resumed one computes tokens that it drew before, chunk by chunk."""
        return request in step.outcome.sampled[step.outcome.num_members :]

    def _end(self, request: Request, server: ServerRecord, now: float) -> None:
        open_ = self._open.pop(request)
        assert open_.first is not None, "it has drawn a token"
        num_gaps = request.num_output_tokens - 1
        found = {
            "ttft": open_.first - open_.due,
            "itl": max(open_.longest, server.longest.since(open_.first_step)) if num_gaps else 0.0,
            "tpot": (now - open_.first) / num_gaps if num_gaps else 0.0,
            "e2el": now - open_.due,
        }
        if num_gaps:
            self.latencies["tpot"].add(found["tpot"])
        self.latencies["e2el"].add(found["e2el"])
        self.num_completed += 1
        self.num_preempted += request.num_preemptions > 0
        self.prompt_tokens += request.num_prompt_tokens
        self.num_good += all(1e3 * found[name] <= most for name, most in self.slos.items())
        self.last_end = now
