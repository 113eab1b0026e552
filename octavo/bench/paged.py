"""Octavo's scheduler and KV manager as they are, over a runner that computes nothing."""

import random
from collections.abc import Iterator, Sequence
from itertools import compress

from octavo.bench.candidates import candidates
from octavo.bench.memory_system import Sample
from octavo.bench.traces import Lengths
from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import ADMISSION_QUANTILE, SchedulerConfig
from octavo.core.step import NewRow, StepPlan, StepResult, TokenLogprobs
from octavo.sim.baselines.memory import Memory
from octavo.sim.filled import num_filled_slots

VOCAB_SIZE = 49152
"""SmolLM2's. Prompts are random tokens: no two of them share a block by chance."""


def make_scheduler(memory: Memory, quantile: float = 0.0) -> Scheduler:
    """A scheduler with this memory, all of it for one sequence if need be. ``quantile``: how far admission looks ahead;
    0: not at all, so that what memory holds is the allocator's doing."""
    config = SchedulerConfig(
        max_num_seqs=memory.max_num_seqs,
        max_num_batched_tokens=memory.max_num_batched_tokens,
        max_model_len=memory.num_slots,
        admission_quantile=quantile,
    )
    return Scheduler(config, KVCacheManager(CacheConfig(memory.num_blocks, memory.block_size)))


def add_request(scheduler: Scheduler, request: Request, *children: Request) -> None:
    """Checks a request as the engine does, and puts it in line; ``children``: its further choices or beams.

    Raises:
        InvalidRequestError: the memory can never hold it.
    """
    num_prompt_tokens = request.num_prompt_tokens
    max_tokens = request.max_total_tokens - num_prompt_tokens
    if request.group is None:
        scheduler.door.check(num_prompt_tokens, max_tokens)
    else:
        scheduler.door.check_beams(num_prompt_tokens, max_tokens, len(request.group.members))
    scheduler.add(request, children=children)


def run_steps(scheduler: Scheduler) -> Iterator[StepPlan]:
    """Every step until nothing is left to do; each is yielded when it is planned and lands when the next is asked for.

    A row draws its own id all the time, so that no two sequences generate the same by chance and share it; those of
    beams find candidates like a language model's.
    """
    beams = _BeamRows()
    while (plan := scheduler.schedule()) is not None:
        yield plan
        drawing = tuple(compress(plan.row_ids, plan.samples))
        scheduler.update(StepResult(plan.step_id, drawing, logprobs=beams.draw(plan, drawing)))


class _BeamRows:
    """The rows that ask for candidates. Each draws after the tokens it began with: as its beam goes on, it gets a new
    row."""

    def __init__(self) -> None:
        self._rows: dict[int, NewRow] = {}

    def draw(self, plan: StepPlan, drawing: Sequence[int]) -> dict[int, TokenLogprobs]:
        self._rows.update((new.row_id, new) for new in plan.new_rows if new.params.logprobs)
        found = {row_id: _best(self._rows[row_id]) for row_id in drawing if row_id in self._rows}
        for row_id in plan.released_rows:
            self._rows.pop(row_id, None)
        return found


def _best(row: NewRow) -> TokenLogprobs:
    assert row.params.logprobs is not None
    best = candidates(row.token_ids, row.params.logprobs)
    return TokenLogprobs(*best[0], rank=1, top=best)


class Paged:
    """Octavo as a System: every request is there from the start. ``quantile``: see ``make_scheduler``."""

    def __init__(
        self, memory: Memory, lengths: Sequence[Lengths], source: random.Random, quantile: float = ADMISSION_QUANTILE
    ) -> None:
        self.name = "Octavo" if quantile else "Octavo, not looking ahead"
        self._memory = memory
        self._scheduler = make_scheduler(memory, quantile)
        for number, request in enumerate(lengths):
            prompt = random_tokens(request.prompt, source)
            add_request(self._scheduler, Request(str(number), prompt, SamplingParams(), max_tokens=request.output))

    @property
    def num_preemptions(self) -> int:
        return self._scheduler.counters.num_preemptions

    def run(self) -> Iterator[Sample]:
        scheduler, pool = self._scheduler, self._scheduler.kv.pool
        for plan in run_steps(scheduler):
            waiting, resident = scheduler.num_waiting, len(scheduler.running)
            has_budget = plan.num_tokens < self._memory.max_num_batched_tokens and resident < self._memory.max_num_seqs
            yield Sample(
                filled_slots=num_filled_slots(scheduler),
                held_slots=(pool.num_blocks - pool.num_free) * self._memory.block_size,
                resident=resident,
                waiting=waiting,
                blocked=waiting > 0 and has_budget,
            )


def random_tokens(count: int, source: random.Random) -> list[int]:
    return source.choices(range(VOCAB_SIZE), k=count)
