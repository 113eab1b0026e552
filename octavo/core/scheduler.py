"""The scheduler: requests in, one plan a step out, what landed back in.

This file is the order of things; ``door`` says what may come in at all, ``planner`` what a step computes, ``landing``
what comes of it, ``population`` where every request stands.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain

from octavo.core.admission import Admission
from octavo.core.door import Door
from octavo.core.flight import Flight
from octavo.core.kv_manager import KVCacheManager
from octavo.core.landing import Lander, Landing
from octavo.core.pace import Pace
from octavo.core.pin_types import PinWish
from octavo.core.pins import PinClaim
from octavo.core.planner import Planner
from octavo.core.population import Population
from octavo.core.prefix_wait import PrefixWaits
from octavo.core.queue import RequestQueue
from octavo.core.request import Request, Status
from octavo.core.running import RunningSet
from octavo.core.scheduler_types import Preemption, SchedulerConfig, SchedulerCounters, StepOutcome, StopCheck
from octavo.core.speculation import Speculation
from octavo.core.step import BlockCopy, StepPlan, StepResult
from octavo.core.tenants import TenantCounts


class Scheduler:
    """Owns the queues; the manager owns the blocks. Reads no clock and builds no tensors.

    ``schedule`` and ``update`` alternate; up to ``max_steps_in_flight`` plans may be out. Requests end in ``update``
    (or by ``abort``); blocks of a request that ends while a step computes it come back when that step lands.
    ``speculation``: what is drafted; nothing, if it is not given.
    """

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager, speculation: Speculation | None = None) -> None:
        ahead = config.max_num_batched_tokens * config.max_steps_in_flight
        assert not kv.config.has_windows or kv.config.max_unlanded_tokens >= ahead, "windows keep less than plans need"
        self.config = config
        self.kv = kv
        self.population = Population(config, kv)
        self.speculation = speculation or Speculation()
        self.door = Door(config, kv)
        self._planner = Planner(config, self.population, self.speculation)
        self._lander = Lander(self.population)
        self._flights: deque[Flight] = deque()
        self._suspects: deque[Request] = deque()

    @property
    def counters(self) -> SchedulerCounters:
        return self.population.counters

    @property
    def running(self) -> RunningSet:
        return self.population.running

    @property
    def waiting(self) -> RequestQueue:
        return self.population.waiting

    @property
    def prefix_waits(self) -> PrefixWaits:
        return self.population.prefix_waits

    @property
    def pace(self) -> Pace:
        return self._planner.pace

    @property
    def admission(self) -> Admission:
        return self._planner.admission

    @property
    def num_waiting(self) -> int:
        return self.population.num_waiting

    @property
    def has_work(self) -> bool:
        return bool(self.running or self._flights or self.num_waiting)

    @property
    def open_requests(self) -> list[Request]:
        """Requests that have not ended, and those that have but hold blocks until a step in flight lands."""
        population = self.population
        places = (self.waiting, self.prefix_waits, population.families, population.held_long)
        return list(dict.fromkeys(chain(self.with_blocks, *places)))

    @property
    def with_blocks(self) -> list[Request]:
        """Those that run, and those that have ended while a step computes them."""
        flying = (request for flight in self._flights for request in flight.requests)
        return list(dict.fromkeys(chain(self.running, flying)))

    # Intake

    @property
    def most_blocks_needed(self) -> int:
        """What the largest open request may come to need, should it share nothing."""
        return max(map(self._num_blocks_needed, self.open_requests), default=0)

    def _num_blocks_needed(self, request: Request) -> int:
        width = len(request.group.members) if request.group else 1
        return 0 if request.is_finished else width * self.kv.num_blocks_for(request.max_total_tokens)

    def claim_pins(
        self, token_ids: Sequence[int], wishes: Sequence[PinWish], cache_salt: str | None, num_open_tokens: int
    ) -> PinClaim:
        """Set blocks aside to pin heads of a prompt; to be given to its request, or withdrawn.

        Raises:
            InvalidRequestError: a required one is refused, by the quota or for the sake of an open request.
        """
        chain = self.kv.hasher.chain(cache_salt, num_open_tokens)
        self.kv.hasher.extend(chain, token_ids, max(wish.num_tokens for wish in wishes))
        return self.kv.keeping.pins.claim(chain.hashes, wishes, cache_salt, self.most_blocks_needed)

    def add(
        self,
        request: Request,
        cache_salt: str | None = None,
        children: Sequence[Request] = (),
        num_open_tokens: int = 0,
    ) -> None:
        """Put a checked request in line. ``children``: its further choices, or the further beams of its search.

        ``cache_salt``: share cached tokens with requests of the same salt only, but for the first
        ``num_open_tokens``, which are open to all.
        """
        chain = self.kv.hasher.chain(cache_salt, min(num_open_tokens, request.num_tokens))
        self.population.add(request, list(children), chain)

    def abort(self, request: Request) -> None:
        """End a request wherever it stands, and with a beam all of its search; nothing happens if it has ended."""
        if not request.is_finished:
            self._end_all(_with_beams([request]), Status.ABORTED)

    # Planning

    def tell_time(self, now: float) -> None:
        """``now``: seconds, on a clock of the caller's. What has a time ends when it is over."""
        self.kv.keeping.tell_time(now)
        self.population.ordering.tell_time(now)
        self.admission.tell_time(now)

    def schedule(self) -> StepPlan | None:
        """The next step, or None if nothing can run until a step in flight has landed."""
        flight = self._plan_trial() if self._suspects else self._plan()
        if flight is None:
            return None
        self._flights.append(flight)
        return flight.plan

    def _plan_trial(self) -> Flight | None:
        """A step has failed: each of those who were in it is tried alone."""
        while self._suspects:
            if self._flights:
                return None
            if flight := self._planner.plan(self._suspects[0]):
                return flight
            self._suspects.popleft()  # it cannot run alone now: let it run with the others
        return self._plan()

    def _plan(self) -> Flight | None:
        """Requests can wait for each other, as beams do for one of theirs; then the last in rank give way. Nor does
        anybody wait for a prefix when nothing runs."""
        while (flight := self._planner.plan(None)) is None and not self._flights:
            if self.prefix_waits:
                self.prefix_waits.give_up()
            elif len(self.running) > 1 or (self.running and self.num_waiting):
                self.population.preempt(self.running.last)
                self._drop_dead_copies()
            else:
                break
        return flight

    def plan_last(self) -> StepPlan | None:
        """When every request has ended and every step has landed: what is to be done before the process ends, if
        anything. No other step comes after it."""
        if not self.kv.config.num_disk_slots:
            return None
        self.kv.keeping.pins.release_all()
        self.kv.store_cached()
        return self._planner.plan_moves().plan

    def plan_moves(self) -> StepPlan:
        """A step without rows, so that the runner makes the moves that are due now and not with the next request. No
        step is in flight; it lands like any other."""
        assert not self._flights
        self._flights.append(self._planner.plan_moves())
        return self._flights[-1].plan

    def take_preemptions(self) -> list[Preemption]:
        """Who was preempted since the last call."""
        taken, self.population.preemptions = self.population.preemptions, []
        return taken

    def tenant_counts(self) -> dict[str, TenantCounts]:
        """What the tenants have got so far: see ``Tenants.counts``."""
        self.population.tenants.settle(self.running)
        return self.population.tenants.counts()

    def standing(self, request: Request) -> dict[str, int | float]:
        """To be shown, of one that has not ended: what its policy counts (``Ordering.standing``), ``passed_by``: how
        many that came after it, and while it stands in line ``ahead``: how many are before it there (under "fair": of
        its tenant's). All as when the line was last looked at: to ask changes nothing."""
        standing = self.population.ordering.standing(request) | {"passed_by": request.num_skips}
        return standing | ({"ahead": self.waiting.num_before(request)} if request in self.waiting else {})

    @property
    def last_planned(self) -> list[Request]:
        """The requests of the last step that was planned, row by row; it has not landed yet."""
        return self._flights[-1].requests

    # Landing

    def update(self, result: StepResult, check_stop: StopCheck | None = None) -> StepOutcome:
        """The oldest step in flight has landed: tokens enter their requests, full blocks the prefix cache, and
        requests end that have to."""
        flight = self._flights.popleft()
        assert flight.plan.step_id == result.step_id, "steps land in the order they were issued"
        outcome = StepOutcome(flight.requests, len(flight.roster.requests))
        reader = self._planner.next_step_id - 1 if self._flights else None
        self._lander.land(Landing(flight, result, check_stop, outcome, reader))
        self._clear_suspects(flight.requests)
        return outcome

    def roll_back(self) -> list[Request]:
        """The steps in flight have failed: nothing of them counts. Their requests are tried again one at a time; one
        that was alone in its step has itself to blame, ends as failed and is returned (with all beams of its search).

        The runner must have been reset: rows are made known to it again."""
        population = self.population
        requests = list(dict.fromkeys(request for flight in self._flights for request in flight.requests))
        unfounded = {request: None for flight in self._flights for request in flight.unfounded}
        population.copies = _compose(copy for flight in self._flights for copy in flight.plan.copies)
        # The tail of a prompt can have got its name in a block that was still to be filled.
        self.kv.pool.forget(copy.target for copy in population.copies)
        self.kv.keeping.pins.release_nameless()
        self._flights.clear()
        self.running.dissolve_batch()
        for request in requests:
            ended = request.is_finished and request.num_in_flight > 0
            request.roll_back()
            if request in unfounded:  # not even what they began with is there
                request.start_from(0)
                if not request.num_preemptions:
                    request.num_cached_tokens = None  # what was thought to be cached may not be: a damaged disk
            if ended:
                population.land_ended(request)
        for request in unfounded:
            if request.status is Status.RUNNING:
                population.withdraw(request)
                population.waiting.push(request)
        population.forget_swapped(self.kv.host.roll_back())
        self._drop_dead_copies()
        population.forget_rows()
        live = [request for request in requests if request.status is Status.RUNNING]
        self._suspects = deque(sorted({*self._suspects, *live}, key=lambda request: request.rank))
        if len(requests) > 1 or not live:
            return []
        failed = _with_beams(live)
        self._end_all(failed, Status.FAILED)
        return failed

    def _end_all(self, requests: Sequence[Request], status: Status) -> None:
        for request in requests:
            self.population.end(request, status)
        self._clear_suspects(requests)
        if self.population.copies:
            self._drop_dead_copies()

    def _drop_dead_copies(self) -> None:
        """Of copies that a failed step has not made, only those are made again whose target is to hold landed tokens;
        the next plan reads their sources, so what was held for failed steps is held until there are none."""
        population, size = self.population, self.kv.config.block_size
        wanted: set[int] = set()
        for request in self.running:
            assert request.tables is not None
            for table in request.tables.groups:
                wanted.update(table[: -(-request.num_landed_tokens // size)])
        population.copies = [copy for copy in population.copies if copy.target in wanted]
        if not population.copies:
            self.kv.land(self._planner.next_step_id - 1)

    def _clear_suspects(self, cleared: Iterable[Request]) -> None:
        if self._suspects:
            innocent = {request for request in cleared if request.is_finished or not request.num_in_flight}
            self._suspects = deque(
                request for request in self._suspects if request not in innocent and request.status is Status.RUNNING
            )

    def reset_prefix_cache(self) -> None:
        """Forget every cached block that is not pinned."""
        self.population.forget_cached(self.with_blocks)


def _compose(copies: Iterable[BlockCopy]) -> list[BlockCopy]:
    """The same copies, each from where its contents were before the first of them."""
    origins: dict[int, int] = {}
    for source, target in copies:
        origins[target] = origins.get(source, source)
    return [BlockCopy(source, target) for target, source in origins.items()]


def _with_beams(requests: Iterable[Request]) -> list[Request]:
    """These requests and the other beams of their searches, those that have not ended."""
    members = (member for request in requests for member in (request.group.members if request.group else [request]))
    return [member for member in dict.fromkeys(members) if not member.is_finished]
