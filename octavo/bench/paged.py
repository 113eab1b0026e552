"""Octavo's scheduler and KV manager as they are, over a runner that computes nothing."""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress

from octavo.bench.memory_system import Memory, Sample
from octavo.bench.traces import Lengths
from octavo.core.kv_manager import CacheConfig, KVCacheManager
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import SchedulerConfig
from octavo.core.step import StepPlan, StepResult

VOCAB_SIZE = 49152
"""SmolLM2's. Prompts are random tokens: no two of them share a block by chance."""


def make_scheduler(memory: Memory) -> Scheduler:
    """A scheduler with this memory, all of it for one sequence if need be."""
    config = SchedulerConfig(
        max_num_seqs=memory.max_num_seqs,
        max_num_batched_tokens=memory.max_num_batched_tokens,
        max_model_len=memory.num_slots,
    )
    return Scheduler(config, KVCacheManager(CacheConfig(memory.num_blocks, memory.block_size)))


def add_requests(scheduler: Scheduler, requests: Iterable[Request]) -> None:
    """Checks requests as the engine does, and puts them in line.

    Raises:
        InvalidRequestError: the memory can never hold one of them.
    """
    for request in requests:
        scheduler.check(request.num_prompt_tokens, request.max_total_tokens - request.num_prompt_tokens)
        scheduler.add(request)


def run_steps(scheduler: Scheduler) -> Iterator[StepPlan]:
    """Every step until nothing is left to do; each is yielded when it is planned and lands when the next is asked for.

    A row draws its own id all the time, so that no two sequences generate the same by chance and share it.
    """
    while (plan := scheduler.schedule()) is not None:
        yield plan
        scheduler.update(StepResult(plan.step_id, tuple(compress(plan.row_ids, plan.samples))))


class Paged:
    """Octavo as a System: every request is there from the start."""

    name = "Octavo"

    def __init__(self, memory: Memory, lengths: Sequence[Lengths], source: random.Random) -> None:
        self._memory = memory
        self._scheduler = make_scheduler(memory)
        add_requests(
            self._scheduler,
            (
                Request(str(number), random_tokens(request.prompt, source), SamplingParams(), max_tokens=request.output)
                for number, request in enumerate(lengths)
            ),
        )

    @property
    def num_preemptions(self) -> int:
        return self._scheduler.counters.num_preemptions

    def run(self) -> Iterator[Sample]:
        scheduler, pool = self._scheduler, self._scheduler.kv.pool
        for plan in run_steps(scheduler):
            waiting, resident = scheduler.num_waiting, len(scheduler.running)
            has_budget = plan.num_tokens < self._memory.max_num_batched_tokens and resident < self._memory.max_num_seqs
            yield Sample(
                filled_slots=self._num_filled_slots(),
                held_slots=(pool.num_blocks - pool.num_free) * self._memory.block_size,
                resident=resident,
                waiting=waiting,
                blocked=waiting > 0 and has_budget,
            )

    def _num_filled_slots(self) -> int:
        size = self._memory.block_size
        full: set[int] = set()
        partial = 0
        for request in self._scheduler.running:
            assert request.tables is not None
            num_full, rest = divmod(request.num_computed_tokens, size)
            full.update(request.tables.groups[0][:num_full])
            partial += rest  # a tail is its own: only full blocks are shared
        return len(full) * size + partial


def random_tokens(count: int, source: random.Random) -> list[int]:
    return source.choices(range(VOCAB_SIZE), k=count)
