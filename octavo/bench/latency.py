"""``octavo bench latency``: how long batches take to their first token, for each step, and to their last token."""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from octavo.bench.report import report
from octavo.bench.stopwatch import Stopwatch
from octavo.cli.options import engine_options_with, model_option
from octavo.cli.table import json_option
from octavo.core.sampling_params import SamplingParams
from octavo.core.timing import untimed
from octavo.engine.interface import EngineLoop
from octavo.engine.messages import EngineRequest
from octavo.engine.steady_clock import steady_time

if TYPE_CHECKING:
    from octavo.engine_args import EngineArgs

COLUMNS = {
    "batch_size": "sequences",
    "input_len": "prompt tokens",
    "output_len": "new tokens",
    "first_token_milliseconds": "TTFT ms",
    "milliseconds_per_step": "ms/step",
    "seconds": "total s",
    "prompt_tokens_per_second": "prompt tokens/s",
    "output_tokens_per_second": "new tokens/s",
}
PARTS = ("plan", "inputs", "native", "sample", "detokenize")
"""What the engine and the runner tell apart; ``rest`` is what remains, ``python`` everything but ``native``."""
BREAKDOWN_COLUMNS = {f"{part}_milliseconds": f"{part} ms" for part in (*PARTS, "rest", "python")}
DEFAULT_SHAPE = {"batch_size": 8, "input_len": 32, "output_len": 128}


@dataclass(frozen=True, slots=True)
class Batch:
    """``batch_size`` prompts of ``input_len`` random tokens, each answered by exactly ``output_len``, where what the
    answers must be does not end before."""

    batch_size: int
    input_len: int
    output_len: int
    structured_outputs: Mapping[str, Any] | None = None

    def requests(self, vocab_size: int, source: random.Random) -> Iterator[EngineRequest]:
        """They arrive now; their prompts are new each time, so none is in the prefix cache."""
        params = SamplingParams(
            temperature=0.0,
            max_tokens=self.output_len,
            ignore_eos=True,
            structured_outputs=self.structured_outputs,
        )
        for number in range(self.batch_size):
            prompt = [source.randrange(vocab_size) for _ in range(self.input_len)]
            yield EngineRequest(str(number), prompt, params, arrival_time=steady_time())


GRID = (Batch(1, 32, 128), Batch(8, 32, 128), Batch(32, 32, 128), Batch(1, 512, 1))
"""One stream, few, many, and a long prompt alone."""


class StepTime(NamedTuple):
    """Seconds of one step; ``parts``: of it in each of ``PARTS``, if a stopwatch runs."""

    seconds: float
    parts: Mapping[str, float]


@dataclass(slots=True)
class Timing:
    """One run of a batch, in seconds. ``prompt_steps``: those until every sequence has its first token; ``steps``:
    those after that, in which every sequence drew one."""

    first_token: float
    total: float
    prompt_steps: list[StepTime] = field(default_factory=list)
    steps: list[StepTime] = field(default_factory=list)


def time_batch(engine: EngineLoop, batch: Batch, source: random.Random, watch: Stopwatch | None = None) -> Timing:
    """Runs ``batch`` to its end. ``first_token`` is when the last of its sequences has drawn its first token."""
    requests = list(batch.requests(engine.limits.vocab_size, source))
    timing = Timing(0.0, 0.0)
    num_begun = 0
    start = time.perf_counter()
    for request in requests:
        engine.add_request(request)
    while engine.has_work():
        step_start = time.perf_counter()
        news = engine.step()
        end = time.perf_counter()
        step = StepTime(end - step_start, watch.take() if watch else {})
        (timing.steps if num_begun == batch.batch_size else timing.prompt_steps).append(step)
        num_begun += len(news.first_token_seconds)
        if news.first_token_seconds:
            timing.first_token = end - start
    timing.total = time.perf_counter() - start
    return timing


def measure(
    engine: EngineLoop, batch: Batch, num_iters: int, source: random.Random, watch: Stopwatch | None = None
) -> dict[str, float | None]:
    """The row of one batch: means over ``num_iters`` runs, the median of all steps, and, with the ``watch`` that
    ``engine`` was built with, what they spend where."""
    timings = [time_batch(engine, batch, source, watch) for _ in range(num_iters)]
    first_token, total = fmean(timing.first_token for timing in timings), fmean(timing.total for timing in timings)
    steps = [step for timing in timings for step in timing.steps]
    row: dict[str, float | None] = {
        **{name: getattr(batch, name) for name in DEFAULT_SHAPE},
        "first_token_milliseconds": 1e3 * first_token,
        "milliseconds_per_step": 1e3 * median(step.seconds for step in steps) if steps else None,
        "seconds": total,
        "prompt_tokens_per_second": batch.batch_size * batch.input_len / first_token,
        "output_tokens_per_second": batch.batch_size * batch.output_len / total,
    }
    if watch is not None:
        row |= breakdown(steps or [step for timing in timings for step in timing.prompt_steps])
    return row


def breakdown(steps: Sequence[StepTime]) -> dict[str, float | None]:
    """Median milliseconds of each part of these steps. ``rest``: landing, deltas, statistics and all else that no part
    claims. Medians do not add up exactly."""
    parts = {part: [step.parts.get(part, 0.0) for step in steps] for part in PARTS}
    parts["rest"] = [step.seconds - sum(step.parts.values()) for step in steps]
    parts["python"] = [step.seconds - step.parts.get("native", 0.0) for step in steps]
    return {f"{part}_milliseconds": 1e3 * median(seconds) for part, seconds in parts.items()}


@click.command("latency")
@model_option
@click.option("--batch-size", type=click.IntRange(1), help="Sequences at once.  [default: 8, or the whole grid]")
@click.option("--input-len", type=click.IntRange(1), help="Tokens of each prompt.  [default: 32, or the whole grid]")
@click.option("--output-len", type=click.IntRange(1), help="Tokens of each answer.  [default: 128, or the whole grid]")
@click.option("--num-iters-warmup", type=click.IntRange(0), default=1, show_default=True, help="Runs not counted.")
@click.option("--num-iters", type=click.IntRange(1), default=3, show_default=True, help="Runs counted.")
@click.option("--breakdown", "with_breakdown", is_flag=True, help="Show what a step spends where.")
@json_option
@engine_options_with(speculation="off")
def latency(
    engine_args: "EngineArgs",
    num_iters_warmup: int,
    num_iters: int,
    with_breakdown: bool,
    json_path: Path | None,
    **shape: int | None,
) -> None:
    """Time batches of random prompts: first token, steps, whole run. Without a shape, a grid of them.

    Nothing is drafted unless --speculation ngram: answers to random prompts repeat themselves as no others do.
    """
    from octavo.build import build_engine

    given = {name: value for name, value in shape.items() if value is not None}
    shape_given: dict[str, Any] = DEFAULT_SHAPE | given
    batches = [Batch(**shape_given)] if given else list(GRID)
    watch = Stopwatch() if with_breakdown else None
    engine, source, rows = build_engine(engine_args, timed=watch or untimed), random.Random(0), []
    for batch in batches:
        for _ in range(num_iters_warmup):
            time_batch(engine, batch, source, watch)
        rows.append(measure(engine, batch, num_iters, source, watch))
    report("latency", rows, COLUMNS | (BREAKDOWN_COLUMNS if with_breakdown else {}), json_path)
