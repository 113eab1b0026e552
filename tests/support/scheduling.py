"""Drive the real scheduler with a runner, checking every invariant on the way."""

from collections import deque
from dataclasses import dataclass, field

from octavo.core.invariants import check_plan, check_scheduler
from octavo.core.kv_manager import CacheConfig, KVCacheManager
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import SchedulerConfig
from octavo.core.step import PendingStep
from tests.support.fake_runner import FakeRunner


@dataclass
class Harness:
    """Scheduler and fake runner in a loop; ``depth`` steps may be in flight."""

    num_blocks: int = 24
    block_size: int = 4
    num_groups: int = 1
    depth: int = 1
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 32
    prefix_caching: bool = True
    max_prefix_wait_steps: int = 64
    runner: FakeRunner = field(init=False)
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        cache = CacheConfig(self.num_blocks, self.block_size, self.num_groups, self.prefix_caching, b"test")
        config = SchedulerConfig(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_steps_in_flight=self.depth,
            max_prefix_wait_steps=self.max_prefix_wait_steps,
        )
        self.kv = KVCacheManager(cache)
        self.scheduler = Scheduler(config, self.kv)
        self.runner = FakeRunner(self.block_size, self.num_groups)
        self.pending: deque[PendingStep] = deque()

    def add(
        self, prompt: list[int], max_tokens: int, *, stop_ids: list[int] | None = None, salt: str | None = None,
        **params: object,
    ) -> Request:  # fmt: skip
        request = Request(
            f"r{len(self.requests)}",
            prompt,
            SamplingParams(stop_token_ids=stop_ids, **params),  # type: ignore[arg-type]
            max_tokens=max_tokens,
        )
        self.scheduler.check(len(prompt), max_tokens)
        self.scheduler.add(request, salt)
        self.requests.append(request)
        return request

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
        self.pending.append(self.runner.submit(plan))
        self.check()
        return True

    def land(self) -> bool:
        if not self.pending:
            return False
        try:
            result = self.pending.popleft().result()
        except RuntimeError:
            self.pending.clear()
            self.runner.reset()
            self.scheduler.roll_back()
        else:
            self.scheduler.update(result)
        self.check()
        return True

    def check(self) -> None:
        check_scheduler(self.scheduler, self.requests)

    def run(self, max_steps: int = 20_000) -> None:
        """Until nothing is left; a hang fails."""
        for _ in range(max_steps):
            if not self.step():
                break
        assert not self.scheduler.has_work, "there is work, and no step runs"
        assert self.kv.pool.num_free == self.num_blocks
