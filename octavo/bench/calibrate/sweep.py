"""Steps of the real engine over prompts, batches and contexts, with what each computes and how long it takes."""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import count
from statistics import median
from typing import ParamSpec, TypeVar

from octavo.bench.latency import Batch
from octavo.core.errors import ConfigurationError
from octavo.core.step import StepPlan
from octavo.engine.interface import EngineLimits, EngineLoop
from octavo.sim.costs import StepWork, work_of
from octavo.sim.fit import Cell

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Scene:
    """A batch that is there from the start. Where ``late_len`` is not 0, a prompt of so many tokens, answered by one
    token, comes each ``LATE_EVERY`` steps while it runs."""

    batch: Batch
    late_len: int = 0

    @property
    def num_tokens(self) -> int:
        """Of the batch and one late prompt, in the KV cache."""
        batch = self.batch
        return batch.batch_size * (batch.input_len + batch.output_len) + self.late_len

    @property
    def length(self) -> int:
        """Of the longest sequence."""
        return max(self.batch.input_len + self.batch.output_len, self.late_len + 1)


LATE_EVERY = 10

SCENES = (
    # Steps of answers, and of many short prompts.
    *(Scene(Batch(rows, 16, 24)) for rows in (1, 2, 4, 8, 16, 32)),
    Scene(Batch(64, 16, 12)),
    # Prompts alone.
    *(Scene(Batch(1, length, 1)) for length in (8, 32, 64, 128, 256, 512)),
    *(Scene(Batch(4, length, 1)) for length in (16, 64)),
    # Contexts.
    *(Scene(Batch(rows, length, 8)) for rows, length in ((1, 1500), (4, 768), (16, 192))),
    # Prompts beside answers.
    *(Scene(Batch(rows, 16, 48), late) for rows, late in ((1, 48), (4, 48), (4, 256))),
)
"""The first has to fit a server; others are left out where they do not."""

CONTEXT_BUCKET = 256
"""Tokens; chunks of equal size whose contexts differ by less are one cell. Beside answers, sizes up to the same power
of two are alike: there the scheduler gives prompts what it thinks right."""


class PlanWatch:
    """A ``Timed`` (core/timing.py) that keeps what the plan made last computes."""

    def __init__(self) -> None:
        self._work: StepWork | None = None

    def __call__(self, part: str, function: Callable[P, R], /) -> Callable[P, R]:
        @wraps(function)
        def watched(*args: P.args, **kwargs: P.kwargs) -> R:
            plan = function(*args, **kwargs)
            self._work = work_of(plan) if isinstance(plan, StepPlan) else None
            return plan

        return watched if part == "plan" else function

    def take(self) -> StepWork | None:
        """None: nothing was planned since."""
        work, self._work = self._work, None
        return work


class Sweep:
    """Steps of ``scenes``, played in any order and as often as one likes; medians count. ``watch`` is the one that
    ``engine`` was built with, and no step is planned ahead.

    Raises:
        ConfigurationError: not even one sequence of the smallest scene fits.
    """

    def __init__(self, engine: EngineLoop, watch: PlanWatch, source: random.Random) -> None:
        self._engine = engine
        self._watch = watch
        self._source = source
        self.scenes = [scene for scene in SCENES if _fits(scene, engine.limits)]
        if not self.scenes:
            raise ConfigurationError("the KV cache is too small for the shortest of the measured sequences, 40 tokens")
        self._steps: defaultdict[tuple[int, ...], list[Cell]] = defaultdict(list)
        for _ in self._play(self.scenes[0]):  # a warm-up
            pass

    def play(self, number: int) -> None:
        """Scene ``number``, once."""
        for step in self._play(self.scenes[number]):
            self._steps[_key(number, step.work)].append(step)

    def cells(self) -> list[Cell]:
        """All that was measured so far."""
        return [_cell(steps) for _, steps in sorted(self._steps.items())]

    def _play(self, scene: Scene) -> Iterator[Cell]:
        """Every step of it. None of its prompts is in the cache."""
        self._engine.reset_prefix_cache()
        vocab_size = self._engine.limits.vocab_size
        for request in scene.batch.requests(vocab_size, self._source):
            self._engine.add_request(request)
        for number in count(1):
            if not self._engine.has_work():
                return
            if scene.late_len and number % LATE_EVERY == 0 and number < scene.batch.output_len:
                (late,) = Batch(1, scene.late_len, 1).requests(vocab_size, self._source)
                self._engine.add_request(replace(late, request_id=f"late {number}"))
            self._watch.take()
            start = time.perf_counter()
            self._engine.step()
            seconds = time.perf_counter() - start
            work = self._watch.take()
            if work is not None:
                yield Cell(work, seconds)


def _fits(scene: Scene, limits: EngineLimits) -> bool:
    num_sequences = scene.batch.batch_size + (scene.late_len > 0)
    num_slots = scene.num_tokens + num_sequences * limits.block_size
    return scene.length <= limits.max_model_len and num_slots <= limits.kv_cache_tokens


def _key(number: int, work: StepWork) -> tuple[int, ...]:
    """Steps of a scene that are one cell: of answers alone, all that have as many rows."""
    size = work.chunk_tokens.bit_length() if work.num_decodes else work.chunk_tokens
    return (number, work.num_decodes, work.num_chunks, size, work.chunk_context // CONTEXT_BUCKET)


def _cell(steps: Sequence[Cell]) -> Cell:
    work = StepWork(*(round(median(column)) for column in zip(*(step.work for step in steps), strict=True)))
    return Cell(work, median(step.seconds for step in steps), len(steps))
