"""Drive the real scheduler with a runner, checking every invariant on the way."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from octavo.core.beam_search import BeamSearchParams, Hypothesis
from octavo.core.hashing import group_names
from octavo.core.invariants import check_plan, check_scheduler
from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig
from octavo.core.pin_types import PinWish
from octavo.core.request import Request, Status
from octavo.core.retention import Retention
from octavo.core.sampling_params import SamplingParams
from octavo.core.sanitizer import KVSanitizer
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import (
    PolicySettings,
    PreemptionMode,
    PromptBounds,
    SchedulerConfig,
    SkipBounds,
)
from octavo.core.speculation import Speculation
from octavo.core.step import PendingStep
from octavo.engine.intake import Intake
from octavo.engine.messages import EngineRequest
from tests.support.fake_disk import FakeDisk
from tests.support.fake_runner import VOCAB_SIZE, FakeRunner, expected_beams, expected_output
from tests.support.naive_beam_search import Search

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass
class Harness:
    """Scheduler and fake runner in a loop, the KV sanitizer between them; ``depth`` steps may be in flight.
    ``standing``: what the policy goes by, fields of EngineRequest, of the request of this number."""

    num_blocks: int = 24
    block_size: int = 4
    num_groups: int = 1
    windows: tuple[int | None, ...] = ()
    depth: int = 1
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 32
    max_model_len: int = 4096
    prefix_caching: bool = True
    max_prefix_wait_steps: int = 64
    num_host_blocks: int = 0
    keep_evicted: bool = False
    num_disk_slots: int = 0
    disk: FakeDisk = field(default_factory=FakeDisk)
    preemption_mode: PreemptionMode = "auto"
    head_skips: SkipBounds = field(default_factory=SkipBounds)
    policy: PolicySettings = field(default_factory=PolicySettings)
    standing: Callable[[int], Mapping[str, Any]] = lambda number: NOTHING
    prompts: PromptBounds = field(default_factory=PromptBounds)
    admission_quantile: float = 0.0
    """Of most scenarios the point is that what fits now does not later; random schedules draw it."""
    pin_quota: float = 0.5
    eviction_policy: str = "lru"
    speculation: Speculation = field(default_factory=Speculation)
    runner: FakeRunner = field(init=False)
    requests: list[Request] = field(default_factory=list)
    hypotheses: dict[Request, Hypothesis] = field(default_factory=dict)
    searches: dict[Request, Search] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cache = CacheConfig(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            num_groups=self.num_groups,
            windows=self.windows,
            max_unlanded_tokens=self.max_num_batched_tokens * self.depth,
            enable_prefix_caching=self.prefix_caching,
            fingerprint=b"test",
            num_host_blocks=self.num_host_blocks,
            keep_evicted=self.keep_evicted,
            num_disk_slots=self.num_disk_slots,
            pin_quota=self.pin_quota,
            eviction_policy=self.eviction_policy,
        )
        config = SchedulerConfig(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            max_steps_in_flight=self.depth,
            max_prefix_wait_steps=self.max_prefix_wait_steps,
            preemption_mode=self.preemption_mode,
            head_skips=self.head_skips,
            policy=self.policy,
            prompts=self.prompts,
            admission_quantile=self.admission_quantile,
        )
        self.kv = KVCacheManager(cache)
        self.kv.host.disk.load(self.disk.stored())
        self.scheduler = Scheduler(config, self.kv, self.speculation)
        self.runner = FakeRunner(self.block_size, self.num_groups, self.windows, disk=self.disk)
        self.sanitizer = KVSanitizer(self.runner, self.scheduler)
        self.pending: deque[PendingStep] = deque()

    def add(
        self, prompt: list[int], max_tokens: int, *, stop_ids: list[int] | None = None, salt: str | None = None,
        num_open: int = 0, pins: tuple[PinWish, ...] = (), retention: Retention | None = None, **params: object,
    ) -> Request:  # fmt: skip
        kept: dict[str, Any] = {"pins": pins, "retention": retention}
        return self.add_choices(
            prompt, 1, max_tokens, stop_ids=stop_ids, salt=salt, num_open=num_open, kept=kept, **params
        )[0]

    def add_choices(
        self, prompt: list[int], n: int, max_tokens: int, *, stop_ids: list[int] | None = None,
        salt: str | None = None, num_open: int = 0, kept: Mapping[str, Any] = NOTHING, **params: object,
    ) -> list[Request]:  # fmt: skip
        """A request with ``n`` choices, each a sequence of its own. ``num_open``: tokens open to all, whatever the
        salt. ``kept``: pins and retention of EngineRequest."""
        sampling = SamplingParams(n=n, max_tokens=max_tokens, stop_token_ids=stop_ids, **params)  # type: ignore[arg-type]
        more = {**self.standing(len(self.requests)), **kept}
        request = EngineRequest(
            self._next_id(), prompt, sampling, 0.0, cache_salt=salt, num_open_tokens=num_open, **more
        )
        return self._enter(request, frozenset())

    def add_beams(self, prompt: list[int], search: Search, salt: str | None = None) -> list[Request]:
        """A beam search: one sequence a beam, which end as its results, best first."""
        beams = BeamSearchParams(
            search.width,
            search.max_tokens,
            length_penalty=search.length_penalty,
            early_stopping=search.early_stopping,
        )
        sampling = SamplingParams(temperature=0.0, max_tokens=search.max_tokens)
        members = self._enter(
            EngineRequest(
                self._next_id(),
                prompt,
                sampling,
                0.0,
                cache_salt=salt,
                beam_search=beams,
                **self.standing(len(self.requests)),
            ),
            search.eos,
        )
        self.searches.update(dict.fromkeys(members, search))
        return members

    def check_answer(self, request: Request) -> None:
        """A request that has ended by itself has the answer that it has alone; one that has not, the beginning of it
        (a beam is no beginning of anything)."""
        prompt, output = request.token_ids[: request.num_prompt_tokens], request.token_ids[request.num_prompt_tokens :]
        is_whole = request.status in (Status.LENGTH, Status.STOPPED)
        if request in self.searches:
            if is_whole:
                assert output == expected_beams(prompt, self.searches[request])[request.choice_index]
            return
        max_tokens = request.max_total_tokens - request.num_prompt_tokens
        choice = 0 if request.params.greedy else request.choice_index
        expected = expected_output(prompt, max_tokens, request.stop_token_ids, choice)
        assert output == (expected if is_whole else expected[: len(output)])

    def _next_id(self) -> str:
        return f"r{len(self.requests)}"

    def _enter(self, request: EngineRequest, eos_token_ids: frozenset[int]) -> list[Request]:
        sequences = Intake(self.scheduler, VOCAB_SIZE, eos_token_ids, lambda: 0).admit(request)
        self.scheduler.add(sequences[0], request.cache_salt, sequences[1:], request.num_open_tokens)
        self.requests += sequences
        return sequences

    def step(self) -> bool:
        """Plan one step if one may be planned, else land one; false when there was nothing to do."""
        if len(self.pending) < self.depth and self.plan():
            return True
        return self.land()

    def plan(self) -> bool:
        plan = self.scheduler.schedule()
        if plan is None:
            return False
        check_plan(self.scheduler, plan)
        self.pending.append(self.sanitizer.submit(plan))
        self.check()
        return True

    def land(self) -> bool:
        if not self.pending:
            return False
        try:
            result = self.pending.popleft().result()
        except RuntimeError:
            self.pending.clear()
            self.sanitizer.reset()
            self.scheduler.roll_back()
        else:
            self.hypotheses.update(self.scheduler.update(result).hypotheses)
        self.check()
        return True

    def check(self) -> None:
        check_scheduler(self.scheduler, self.requests)

    def check_leaves_go_first(self) -> None:
        """A cached block that nobody uses does not outlive what it follows, where a row sees all: pins and priorities
        are closed under prefix."""
        windows = self.windows or (None,) * self.num_groups
        groups = [group for group, window in enumerate(windows) if window is None]
        for request in self.requests:
            for names in (group_names(group, request.chain.hashes) for group in groups):
                found = [self.kv.pool.lookup(name) is not None for name in names]
                assert found == sorted(found, reverse=True), "a block is cached, and what it follows is not"

    def run(self, max_steps: int = 20_000) -> None:
        """Until nothing is left; a hang fails."""
        for _ in range(max_steps):
            if not self.step():
                break
        else:
            raise AssertionError(f"no end after {max_steps} steps: somebody takes turns")
        assert not self.scheduler.has_work, "there is work, and no step runs"
        assert self.kv.pool.num_free == self.num_blocks - self.kv.keeping.pins.num_blocks
        self.scheduler.kv.land(1 << 60)
        assert self.kv.host.pool.num_free == self.num_host_blocks
