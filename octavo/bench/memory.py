"""``octavo bench memory``: how much of the KV memory holds tokens, paged and reserved to the maximum.

Two systems get the same memory, the same budgets and the same requests, all at once. Neither runs a model: what the
memory holds follows from the lengths alone, so the figures are the same on every machine.
"""

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import dropwhile
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, Protocol

import click

from octavo.bench.report import report
from octavo.bench.traces import Lengths, draw_lengths
from octavo.cli.table import json_option
from octavo.core.kv_manager import CacheConfig, KVCacheManager
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import SchedulerConfig
from octavo.core.step import StepResult

NUM_BLOCKS = 3000
"""48,000 tokens, 2.1 GiB for SmolLM2-135M in fp32: some 35 sequences of the trace, as on one small machine."""
MAX_NUM_SEQS = 256
MAX_NUM_BATCHED_TOKENS = 2048
VOCAB_SIZE = 49152

COLUMNS = {
    "system": "system",
    "filled_share": "slots filled",
    "filled_share_once_full": "filled, once full",
    "held_share": "held, once full",
    "resident": "sequences",
    "num_preemptions": "preemptions",
    "num_steps": "steps",
}


@dataclass(frozen=True, slots=True)
class Memory:
    """What both systems are given. The token budget is large, so that it is memory that requests wait for: with a
    small one sequences end as fast as prompts can be computed, and no memory is ever full."""

    num_blocks: int
    block_size: int = 16
    max_num_batched_tokens: int = MAX_NUM_BATCHED_TOKENS
    max_num_seqs: int = MAX_NUM_SEQS

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size


class Sample(NamedTuple):
    """One step. ``filled_slots`` hold a token of a live sequence when it lands (a shared one counts once);
    ``held_slots`` are given to live sequences; ``blocked``: there was budget to admit a waiting request, but no room.
    """

    filled_slots: int
    held_slots: int
    resident: int
    waiting: int
    blocked: bool


class System(Protocol):
    """A way to give KV memory to sequences, run step by step."""

    name: str

    @property
    def num_preemptions(self) -> int: ...

    def run(self) -> Iterator[Sample]: ...


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """One system's run. ``filled_share`` (of all slots) is a mean over the steps in which requests wait;
    ``filled_share_once_full``, ``held_share`` and ``resident`` (sequences) over those from the first in which memory
    kept a request out. None where there were none.
    """

    system: str
    filled_share: float | None
    filled_share_once_full: float | None
    held_share: float | None
    resident: float | None
    num_preemptions: int
    num_steps: int
    num_steps_waiting: int
    num_steps_short_of_memory: int


class Paged:
    """Octavo's scheduler and KV manager as they are, without a model; prompts are random tokens."""

    name = "Octavo"

    def __init__(self, memory: Memory, lengths: Sequence[Lengths], source: random.Random) -> None:
        self._memory = memory
        kv = KVCacheManager(CacheConfig(memory.num_blocks, memory.block_size))
        self._scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=memory.max_num_seqs,
                max_num_batched_tokens=memory.max_num_batched_tokens,
                max_model_len=memory.num_slots,
            ),
            kv,
        )
        for number, request in enumerate(lengths):
            prompt = source.choices(range(VOCAB_SIZE), k=request.prompt)
            self._scheduler.check(request.prompt, request.output)
            self._scheduler.add(Request(str(number), prompt, SamplingParams(), max_tokens=request.output))

    @property
    def num_preemptions(self) -> int:
        return self._scheduler.counters.num_preemptions

    def run(self) -> Iterator[Sample]:
        scheduler, pool = self._scheduler, self._scheduler.kv.pool
        while (plan := scheduler.schedule()) is not None:
            waiting, resident = scheduler.num_waiting, len(scheduler.running)
            has_budget = plan.num_tokens < self._memory.max_num_batched_tokens and resident < self._memory.max_num_seqs
            yield Sample(
                filled_slots=self._num_filled_slots(),
                held_slots=(pool.num_blocks - pool.num_free) * self._memory.block_size,
                resident=resident,
                waiting=waiting,
                blocked=waiting > 0 and has_budget,
            )
            scheduler.update(StepResult(plan.step_id, (0,) * sum(plan.samples)))

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


@dataclass(slots=True)
class _Sequence:
    """A sequence in contiguous memory: tokens that it will ever write, and those written."""

    prompt: int
    total: int
    written: int = 0


class ContiguousReserve:
    """First come, first served; each sequence gets one piece of memory for the longest sequence there can be.

    ``longest`` is the longest of the run, which favours it: a server that does not know its requests reserves the
    model's whole context. Budgets are spent as Octavo spends them: one token for each sequence that generates, then
    prompts in chunks, the oldest first.
    """

    name = "reserve to the maximum"
    num_preemptions = 0

    def __init__(self, memory: Memory, lengths: Sequence[Lengths]) -> None:
        self._memory = memory
        self._longest = max(request.total for request in lengths)
        self._places = min(memory.num_slots // self._longest, memory.max_num_seqs)
        # The last token that is drawn is never written: nothing follows it.
        self._waiting = deque(_Sequence(request.prompt, request.total - 1) for request in lengths)
        self._resident: list[_Sequence] = []

    def run(self) -> Iterator[Sample]:
        while self._waiting or self._resident:
            budget = self._memory.max_num_batched_tokens
            decoding = [sequence for sequence in self._resident if sequence.written >= sequence.prompt]
            for sequence in decoding:
                sequence.written += 1
            budget -= len(decoding)
            behind = [sequence for sequence in self._resident if sequence.written < sequence.prompt]
            while budget and (behind or (self._waiting and len(self._resident) < self._places)):
                if not behind:
                    behind.append(self._waiting.popleft())
                    self._resident.append(behind[0])
                count = min(budget, behind[0].prompt - behind[0].written)
                behind.pop(0).written += count
                budget -= count
            yield Sample(
                filled_slots=sum(sequence.written for sequence in self._resident),
                held_slots=len(self._resident) * self._longest,
                resident=len(self._resident),
                waiting=len(self._waiting),
                blocked=bool(self._waiting) and len(self._resident) == self._places,
            )
            self._resident = [sequence for sequence in self._resident if sequence.written < sequence.total]


def measure(system: System, memory: Memory) -> MemoryFigures:
    """Runs ``system`` to its end."""
    samples = list(system.run())
    waiting = [sample for sample in samples if sample.waiting]
    short = list(dropwhile(lambda sample: not sample.blocked, waiting))
    slots = memory.num_slots
    return MemoryFigures(
        system=system.name,
        filled_share_once_full=_mean([sample.filled_slots / slots for sample in short]),
        held_share=_mean([sample.held_slots / slots for sample in short]),
        resident=_mean([sample.resident for sample in short]),
        filled_share=_mean([sample.filled_slots / slots for sample in waiting]),
        num_preemptions=system.num_preemptions,
        num_steps=len(samples),
        num_steps_waiting=len(waiting),
        num_steps_short_of_memory=len(short),
    )


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


@click.command("memory")
@click.option("--num-requests", type=click.IntRange(1), default=200, show_default=True, help="All arrive at once.")
@click.option(
    "--num-blocks",
    type=click.IntRange(1),
    default=NUM_BLOCKS,
    show_default=True,
    help="Blocks of 16 tokens in the KV memory.",
)
@click.option(
    "--max-num-batched-tokens",
    type=click.IntRange(MAX_NUM_SEQS),
    default=MAX_NUM_BATCHED_TOKENS,
    show_default=True,
    help="Most tokens in one step.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Draws the requests from the trace.")
@json_option
def memory_command(
    num_requests: int, num_blocks: int, max_num_batched_tokens: int, seed: int, json_path: Path | None
) -> None:
    """Compare paged KV memory with memory reserved to the maximum, on real lengths (Azure conversation trace).

    Shares are of all slots, as a mean over the steps in which requests wait; "once full" leaves out the first of them,
    in which the empty memory fills as fast as the token budget allows.
    """
    memory = Memory(num_blocks, max_num_batched_tokens=max_num_batched_tokens)
    lengths = draw_lengths(num_requests, seed)
    systems: list[System] = [Paged(memory, lengths, random.Random(seed)), ContiguousReserve(memory, lengths)]
    report("memory", [asdict(measure(system, memory)) for system in systems], COLUMNS, json_path)
