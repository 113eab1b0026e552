"""How many blocks sequences save by sharing, step by step: parallel sampling, beams, prompts with one beginning.

Measured as in "Efficient Memory Management for Large Language Model Serving with PagedAttention" (Kwon et al., SOSP
2023, section 6.3): blocks saved by sharing, over the blocks that the same sequences would take without it.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from octavo.bench.memory_system import mean_or_none
from octavo.bench.paged import add_request, make_scheduler, random_tokens, run_steps
from octavo.bench.traces import Lengths
from octavo.core.beam_group import BeamGroup
from octavo.core.beam_search import BeamSearch, BeamSearchParams
from octavo.core.request import Request
from octavo.core.sampling_params import DEFAULT_LIMITS, SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.sim.baselines.memory import Memory


class BlockCount(NamedTuple):
    """One step. ``logical``: entries of the running sequences' tables, what they would take without sharing;
    ``used``: blocks of the pool that are in use; ``waiting``: sequences that are not running."""

    logical: int
    used: int
    waiting: int

    @property
    def saved_share(self) -> float:
        return 1 - self.used / self.logical


class Mode(Protocol):
    """A way to ask for sequences that share."""

    @property
    def name(self) -> str: ...

    def requests(self, number: int, lengths: Lengths, source: random.Random) -> list[Request]:
        """The sequences of request ``number``: one, and those that fork it."""
        ...


@dataclass(frozen=True, slots=True)
class ParallelSampling:
    """``n`` choices for each prompt, all as long as the answer in the data set."""

    n: int

    @property
    def name(self) -> str:
        return f"parallel sampling, n = {self.n}"

    def requests(self, number: int, lengths: Lengths, source: random.Random) -> list[Request]:
        prompt = random_tokens(lengths.prompt, source)
        return [
            Request(f"{number}-{index}", prompt, SamplingParams(), max_tokens=lengths.output, choice_index=index)
            for index in range(self.n)
        ]


@dataclass(frozen=True, slots=True)
class Beams:
    """Beam search, as long as the answer in the data set: no beam ends early."""

    width: int

    @property
    def name(self) -> str:
        return f"beam search, width {self.width}"

    def requests(self, number: int, lengths: Lengths, source: random.Random) -> list[Request]:
        prompt = random_tokens(lengths.prompt, source)
        search = BeamSearch(BeamSearchParams(self.width, lengths.output), frozenset(), lengths.output)
        limits = replace(DEFAULT_LIMITS, logprobs=search.num_candidates)
        params = SamplingParams(temperature=0.0, logprobs=search.num_candidates, limits=limits)
        members = [
            Request(f"{number}-{index}", prompt, params, max_tokens=lengths.output, choice_index=index)
            for index in range(self.width)
        ]
        return BeamGroup(members, search).members


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """One prefix, as of a system prompt, before every prompt of the data set."""

    num_tokens: int

    @property
    def name(self) -> str:
        return f"shared prefix of {self.num_tokens} tokens"

    def requests(self, number: int, lengths: Lengths, source: random.Random) -> list[Request]:
        prefix = random_tokens(self.num_tokens, random.Random(self.num_tokens))
        prompt = prefix + random_tokens(lengths.prompt, source)
        return [Request(str(number), prompt, SamplingParams(), max_tokens=lengths.output)]


@dataclass(frozen=True, slots=True)
class SharingFigures:
    """Means over the steps in which sequences wait, None where there were none. ``saved_share``: of the logical
    blocks."""

    mode: str
    saved_share: float | None
    logical_blocks: float | None
    used_blocks: float | None
    num_preemptions: int
    num_steps: int
    num_steps_waiting: int


def measure_sharing(lengths: Sequence[Lengths], mode: Mode, memory: Memory, seed: int) -> SharingFigures:
    """Serves requests of these lengths, all there from the start, to their end."""
    scheduler, source = make_scheduler(memory), random.Random(seed)
    for number, request in enumerate(lengths):
        add_request(scheduler, *mode.requests(number, request, source))
    counts = list(run(scheduler))
    short = [count for count in counts if count.waiting]
    return SharingFigures(
        mode=mode.name,
        saved_share=mean_or_none([count.saved_share for count in short]),
        logical_blocks=mean_or_none([count.logical for count in short]),
        used_blocks=mean_or_none([count.used for count in short]),
        num_preemptions=scheduler.counters.num_preemptions,
        num_steps=len(counts),
        num_steps_waiting=len(short),
    )


def run(scheduler: Scheduler) -> Iterator[BlockCount]:
    """Every step until nothing is left to do."""
    pool = scheduler.kv.pool
    for _ in run_steps(scheduler):
        tables = [request.tables for request in scheduler.running if request.tables is not None]
        yield BlockCount(
            logical=sum(table.num_blocks for table in tables),
            used=pool.num_blocks - pool.num_free,
            waiting=scheduler.num_waiting,
        )
