"""An hour of mixed work on a simulated clock, with the real scheduler and the real allocator: conversations that go on,
choices, beams, tenants, pins, retention, aborts, faults, resets of the cache, swapping, host and disk tiers. Every
request ends, every counter adds up, and every block comes back."""

import logging
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple

import pytest

from octavo.core.beam_search import BeamSearchParams
from octavo.core.errors import InvalidRequestError
from octavo.core.invariants import check_scheduler
from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig
from octavo.core.pin_types import PinWish
from octavo.core.request import Request, Status
from octavo.core.retention import Retention
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import PreemptionMode, SchedulerConfig
from octavo.core.step import StepPlan, StepResult, TokenLogprobs
from octavo.engine.intake import Intake
from octavo.engine.messages import EngineRequest

VOCAB_SIZE = 1000
EOS = frozenset([0])
STEP_SECONDS = 0.0015
TOKEN_SECONDS = 2e-6
"""Such a step takes as long as that of a small model on a fast accelerator: an hour is two million of them."""
MODEL_LEN = 2048
SYSTEM_PROMPTS = [[10 + number] * 141 for number in range(4)]


@dataclass(frozen=True)
class Setting:
    """One kind of engine. ``num_blocks`` holds about as many requests as arrive while one runs."""

    depth: int
    windows: tuple[int | None, ...]
    """Of each layer group."""
    eviction_policy: str
    preemption_mode: PreemptionMode
    keep_evicted: bool
    num_disk_slots: int
    num_blocks: int = 280


SETTINGS = {
    "swap, host and disk": Setting(1, (None,), "lru", "swap", True, 200),
    "two in flight, reuse": Setting(2, (None, None), "reuse", "auto", False, 0, num_blocks=560),
    "windows": Setting(1, (None, 48), "lru", "auto", True, 0, num_blocks=440),
}


class Arrival(NamedTuple):
    """A prompt that comes at some time; ``number`` breaks ties."""

    time: float
    number: int
    token_ids: list[int]
    salt: str | None


@dataclass
class Soak:
    """Time goes by with steps; what they draw is random."""

    setting: Setting
    seed: int
    now: float = 0.0
    num_steps: int = 0
    open_requests: dict[Request, str | None] = field(default_factory=dict)
    """With the salt of each."""
    seen: Counter[str] = field(default_factory=Counter)
    expected: Counter[str] = field(default_factory=Counter)
    """What the counters must come to."""

    def __post_init__(self) -> None:
        setting, self.rng = self.setting, random.Random(self.seed)
        cache = CacheConfig(
            num_blocks=setting.num_blocks,
            num_groups=len(setting.windows),
            windows=setting.windows,
            max_unlanded_tokens=512 * setting.depth,
            fingerprint=b"soak",
            num_host_blocks=setting.num_blocks // 4,
            keep_evicted=setting.keep_evicted,
            num_disk_slots=setting.num_disk_slots,
            eviction_policy=setting.eviction_policy,
        )
        self.kv = KVCacheManager(cache)
        config = SchedulerConfig(
            max_num_seqs=32,
            max_num_batched_tokens=512,
            max_model_len=MODEL_LEN,
            max_steps_in_flight=setting.depth,
            preemption_mode=setting.preemption_mode,
        )
        self.scheduler = Scheduler(config, self.kv)
        self.scheduler.population.costs.seconds_per_token = TOKEN_SECONDS
        self.scheduler.population.costs.seconds_per_block = TOKEN_SECONDS
        self.intake = Intake(self.scheduler, VOCAB_SIZE, EOS, lambda: 0)
        self.flights: deque[StepPlan] = deque()
        self.arrivals: list[Arrival] = []
        self.num_arrivals = 0
        self.num_logprobs: dict[int, int] = {}
        """Of the rows that the runner knows."""

    def run(self, seconds: float, seconds_a_request: float) -> None:
        """Requests arrive for so long; then all of them end."""
        next_new = 0.0
        while self.now < seconds or self.scheduler.has_work:
            self._tell_time()
            while self.now < seconds and next_new <= self.now:
                self._arrive(self._new_prompt(), self.rng.choice([None, None, "a", "b"]), next_new)
                next_new += self.rng.expovariate(1 / seconds_a_request)
            while self.arrivals and self.arrivals[0].time <= self.now and self.now < seconds:
                self._enter(heappop(self.arrivals))
            self._disturb()
            if not self._step():
                assert not self.scheduler.has_work, "there is work, and no step runs"
                self.now = max(self.now, min(next_new, self.arrivals[0].time if self.arrivals else next_new))

    # Requests

    def _new_prompt(self) -> list[int]:
        head = self.rng.choice([*SYSTEM_PROMPTS, []])
        return head + self.rng.choices(range(1, VOCAB_SIZE), k=1 + min(600, int(self.rng.expovariate(1 / 80))))

    def _arrive(self, token_ids: list[int], salt: str | None, time: float) -> None:
        self.num_arrivals += 1
        heappush(self.arrivals, Arrival(time, self.num_arrivals, token_ids, salt))

    def _enter(self, arrival: Arrival) -> None:
        """One request, of one kind or another; those that can never run are refused."""
        rng, kind, prompt = self.rng, self.rng.random(), arrival.token_ids
        max_tokens = 1 + min(400, int(rng.expovariate(1 / 60)))
        more: dict[str, Any] = {}
        n = 1
        if kind < 0.03:
            more["beam_search"] = BeamSearchParams(rng.randint(2, 4), min(max_tokens, 40))
        elif kind < 0.13:
            n = rng.randint(2, 5)
        elif kind < 0.18:
            more["pins"] = (PinWish(min(len(prompt), 141), rng.uniform(1, 60), is_required=rng.random() < 0.5),)
        elif kind < 0.26:
            more["retention"] = rng.choice([Retention(10), Retention(80, rng.uniform(1, 100)), Retention(90)])
        elif kind < 0.30 and arrival.salt:
            more["num_open_tokens"] = min(len(prompt), 141)
        params = SamplingParams(n=n, max_tokens=max_tokens, prompt_logprobs=0 if 0.30 < kind < 0.32 else None)
        request = EngineRequest(str(arrival.number), prompt, params, self.now, cache_salt=arrival.salt, **more)
        try:
            sequences = self.intake.admit(request)
        except InvalidRequestError:
            self.seen["refused"] += 1
            return
        self.scheduler.add(sequences[0], arrival.salt, sequences[1:], request.num_open_tokens)
        self.open_requests.update(dict.fromkeys(sequences, arrival.salt))
        self.seen["beams"] += "beam_search" in more
        self.seen["choices"] += n > 1
        self.seen["pins"] += "pins" in more

    def _close(self, request: Request) -> None:
        """A request has ended: count it; some conversations go on."""
        salt = self.open_requests.pop(request)
        self.seen[request.status.value] += 1
        self.seen["swapped or recomputed"] += request.num_preemptions > 0
        self.expected["preemptions"] += request.num_preemptions
        if request.choice_index == 0 and request.num_output_tokens and request.may_read_cache:
            self.expected["hits"] += request.num_cached_tokens or 0
        goes_on = request.choice_index == 0 and request.status in (Status.LENGTH, Status.STOPPED)
        if goes_on and self.rng.random() < 0.6:
            question = self.rng.choices(range(1, VOCAB_SIZE), k=self.rng.randint(1, 60))
            self._arrive(request.token_ids + question, salt, self.now + self.rng.expovariate(1 / 5))

    def _disturb(self) -> None:
        """Clients hang up, the cache is reset: now and then."""
        if self.open_requests and self.rng.random() < 0.001:
            self.scheduler.abort(self.rng.choice(list(self.open_requests)))
            self._close_ended()
        if self.rng.random() < 1e-5:
            self.scheduler.reset_prefix_cache()
            self.seen["resets"] += 1
        if self.rng.random() < 1e-4:
            check_scheduler(self.scheduler, self._all_with_blocks())
            self.seen["checks"] += 1

    def _all_with_blocks(self) -> list[Request]:
        return list(dict.fromkeys([*self.open_requests, *self.scheduler.open_requests]))

    def _close_ended(self) -> None:
        for request in [request for request in self.open_requests if request.is_finished]:
            self._close(request)

    # Steps

    def _tell_time(self) -> None:
        self.kv.keeping.tell_time(self.now)
        self.scheduler.tell_time(self.now)

    def _step(self) -> bool:
        plan = self.scheduler.schedule() if len(self.flights) < self.setting.depth else None
        if plan is not None:
            self._note(plan)
            self.flights.append(plan)
        elif not self.flights:
            return False
        if len(self.flights) == self.setting.depth or plan is None:
            self._land()
        return True

    def _note(self, plan: StepPlan) -> None:
        self.num_steps += 1
        self.now += STEP_SECONDS + TOKEN_SECONDS * plan.num_tokens
        self.num_logprobs.update((row.row_id, row.params.logprobs or 0) for row in plan.new_rows)
        self.expected["swapped out"] += len(plan.swap_outs)
        self.expected["swapped in"] += len(plan.swap_ins)
        self.seen["copies"] += len(plan.copies)
        self.seen["forks"] += len(plan.forks)
        self.seen["disk writes"] += len(plan.disk.writes)
        self.seen["disk reads"] += len(plan.disk.reads)

    def _land(self) -> None:
        if self.rng.random() < 2e-5:
            self._fail()
            return
        plan = self.flights.popleft()
        drawing = [row_id for row_id, samples in zip(plan.row_ids, plan.samples, strict=True) if samples]
        logprobs = {row_id: self._logprobs(count) for row_id in drawing if (count := self.num_logprobs[row_id])}
        for row_id in plan.released_rows:
            del self.num_logprobs[row_id]
        token_ids = tuple(self.rng.choices(range(VOCAB_SIZE), k=len(drawing)))
        outcome = self.scheduler.update(StepResult(plan.step_id, token_ids, logprobs=logprobs))
        self.expected["generated"] += len(outcome.sampled)
        self.expected["generated"] += sum(len(found.token_ids) for found in outcome.hypotheses.values())
        for request in (*outcome.finished, *outcome.failed, *outcome.hypotheses):
            if request in self.open_requests:
                self._close(request)

    def _fail(self) -> None:
        """All that is in flight is lost. Blocks went to the host and came from it, or did not: that is not counted."""
        self.seen["faults"] += 1
        self.flights.clear()
        self.num_logprobs.clear()
        self.scheduler.roll_back()
        self._close_ended()

    def _logprobs(self, count: int) -> TokenLogprobs:
        ids = self.rng.sample(range(VOCAB_SIZE), count)
        top = tuple((token_id, -0.1 * (rank + 1)) for rank, token_id in enumerate(ids))
        return TokenLogprobs(*top[0], 1, top)

    # The end

    def check_end(self) -> None:
        counters, kv = self.scheduler.counters, self.kv
        assert not self.open_requests, "every request ends"
        assert counters.generation_tokens == self.expected["generated"]
        assert counters.num_preemptions == self.expected["preemptions"]
        assert counters.prefix_hits == self.expected["hits"]
        assert 0 < counters.prefix_hits < counters.prefix_queries
        assert not kv.held_blocks
        check_scheduler(self.scheduler, [])
        kv.keeping.tell_time(self.now + 1000)  # pins have ended by now
        assert kv.keeping.pins.num_claimed == 0
        assert kv.pool.num_free == kv.pool.num_blocks
        kv.land(1 << 60)
        assert kv.host.pool.num_free == kv.host.pool.num_blocks
        assert not kv.host.held_blocks
        assert kv.host.disk.pool.num_free == kv.host.disk.pool.num_blocks
        kv.forget_cached()
        assert kv.pool.num_named == 0
        check_scheduler(self.scheduler, [])


def _soak(name: str, seconds: float, seed: int = 0) -> Soak:
    soak = Soak(SETTINGS[name], seed)
    soak.run(seconds, seconds_a_request=0.017)
    soak.check_end()
    return soak


@pytest.mark.soak
@pytest.mark.parametrize("name", SETTINGS)
def test_an_hour(name: str) -> None:
    soak = _soak(name, 3600.0)
    logging.getLogger(__name__).warning("%s: %s steps, %s", name, soak.num_steps, dict(soak.seen))
    assert soak.num_steps > 1_000_000
    assert soak.seen["faults"] > 5
    assert soak.seen["resets"] > 5
    assert soak.seen["checks"] > 50


@pytest.mark.parametrize("name", SETTINGS)
def test_some_seconds(name: str) -> None:
    """As the hour begins; and the power check of it: what it is about does happen."""
    soak = _soak(name, 12.0)
    happened = ["length", "stop", "abort", "beams", "choices", "pins", "swapped or recomputed", "copies", "forks"]
    if soak.setting.num_disk_slots:
        happened += ["disk writes", "disk reads"]
    assert all(soak.seen[what] for what in happened), soak.seen
    assert soak.expected["swapped out"]
    assert soak.expected["swapped in"]
