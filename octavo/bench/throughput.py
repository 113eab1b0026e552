"""``octavo bench throughput``: tokens a second on requests of real lengths, against static batching.

The peer is the ``generate`` of transformers in fp32: batches of 16 in order of arrival, padded on the left, each batch
as long as its longest output. Both run in this process with the same number of threads, one after the other in each
repeat, on the same prompts; a repeat has new prompts, so that no run finds its prompts cached.
"""

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from octavo.bench.report import report
from octavo.bench.traces import Lengths, draw_lengths
from octavo.cli.options import engine_options_with, model_option
from octavo.cli.table import json_option
from octavo.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from octavo.engine_args import EngineArgs
    from octavo.llm import LLM

COLUMNS = {
    "system": "system",
    "num_requests": "requests",
    "prompt_tokens": "prompt tokens",
    "output_tokens": "new tokens",
    "seconds": "median s",
    "output_tokens_per_second": "new tokens/s",
    "total_tokens_per_second": "all tokens/s",
    "ratio": "ratio",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts, all there from the start, and how many tokens each is answered by."""

    prompts: list[list[int]]
    output_lens: list[int]


Run = Callable[[Workload], float]
"""Answers a workload; returns the seconds that it took."""


def make_workload(lengths: Sequence[Lengths], vocab_size: int, source: random.Random) -> Workload:
    """Random token ids below ``vocab_size``."""
    prompts = [[source.randrange(vocab_size) for _ in range(request.prompt)] for request in lengths]
    return Workload(prompts, [request.output for request in lengths])


def run_octavo(llm: "LLM", workload: Workload) -> float:
    """Seconds of the whole engine, requests in to texts out; greedy, EOS ignored."""
    params = [
        SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True) for output_len in workload.output_lens
    ]
    start = time.perf_counter()
    outputs = llm.generate(workload.prompts, params)
    seconds = time.perf_counter() - start
    drawn = [len(output.outputs[0].token_ids) for output in outputs]
    assert drawn == workload.output_lens, "every answer has the length that was asked for"
    return seconds


def compare(runs: dict[str, Run], workloads: Iterator[Workload], repeats: int) -> dict[str, list[float]]:
    """Seconds of each run in each repeat, interleaved, so that a busy machine disturbs all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        workload = next(workloads)
        for name, run in runs.items():
            seconds[name].append(run(workload))
    return seconds


def figures(lengths: Sequence[Lengths], seconds: dict[str, list[float]]) -> list[dict[str, object]]:
    """A row for each system. ``ratio``: Octavo's speed over this one's, the median of the repeats' own ratios."""
    rows: list[dict[str, object]] = []
    octavo = next(iter(seconds.values()))
    prompt_tokens, output_tokens = (sum(column) for column in zip(*lengths, strict=True))
    for name, measured in seconds.items():
        median = statistics.median(measured)
        ratios = [other / own for own, other in zip(octavo, measured, strict=True)]
        rows.append(
            {
                "system": name,
                "num_requests": len(lengths),
                "prompt_tokens": prompt_tokens,
                "output_tokens": output_tokens,
                "seconds": median,
                "output_tokens_per_second": output_tokens / median,
                "total_tokens_per_second": (prompt_tokens + output_tokens) / median,
                "ratio": statistics.median(ratios),
                "seconds_of_repeats": measured,
            }
        )
    return rows


@click.command("throughput")
@model_option
@click.option("--num-requests", type=click.IntRange(1), default=64, show_default=True, help="All arrive at once.")
@click.option("--divisor", type=click.IntRange(1), default=8, show_default=True, help="Of the lengths in the trace.")
@click.option("--against", type=click.Choice(["transformers"]), help="Measure static batching in the same run.")
@click.option("--static-batch-size", type=click.IntRange(1), default=16, show_default=True, help="Of the peer.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Medians are shown.")
@json_option
@engine_options_with(speculation="off")
def throughput(
    engine_args: "EngineArgs",
    num_requests: int,
    divisor: int,
    against: str | None,
    static_batch_size: int,
    repeats: int,
    json_path: Path | None,
) -> None:
    """Measure tokens a second on requests with real lengths (Azure conversation trace), greedy, to their full length.

    --seed also draws the requests and their tokens. Nothing is drafted unless --speculation ngram: answers to random
    prompts repeat themselves as no others do.
    """
    from octavo.llm import LLM

    threads = engine_args.threads or len(os.sched_getaffinity(0))
    engine_args = replace(engine_args, threads=threads)
    seed = engine_args.seed or 0
    lengths = draw_lengths(num_requests, seed, divisor)
    peers: dict[str, Run] = {}
    if against is not None:
        from octavo.bench.static_batching import StaticBatching

        peers[f"{against}, batches of {static_batch_size}"] = StaticBatching(engine_args.model, static_batch_size).run
    llm = LLM(**asdict(engine_args))
    runs: dict[str, Run] = {"Octavo": partial(run_octavo, llm), **peers}
    vocab_size, source = llm.get_tokenizer().vocab_size, random.Random(seed)
    compare(runs, iter([make_workload([Lengths(8, 2)] * 2, vocab_size, source)]), repeats=1)  # warm-up
    workloads = iter(lambda: make_workload(lengths, vocab_size, source), None)
    seconds = compare(runs, workloads, repeats)
    report("throughput", figures(lengths, seconds), COLUMNS, json_path)
