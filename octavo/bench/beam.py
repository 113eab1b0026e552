"""``octavo bench beam``: beam search in the core against a loop outside it, which sends every beam as a new prompt.

The loop is how a server without beams of its own is made to search: at each step all beams go in as prompts, one token
is drawn after each, its best candidates come back, and the loop decides which beams go on, by the very rules of the
core. It is measured without a prefix cache, where every step computes every beam from its beginning, and with one,
where only what is not cached is computed. All find the same sequences, which is checked.
"""

import os
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from octavo.bench.report import report
from octavo.bench.throughput import Run, Workload, compare, figures, make_workload
from octavo.bench.traces import Lengths
from octavo.cli.options import engine_options, model_option
from octavo.cli.table import json_option
from octavo.core.beam_search import BeamSearch, BeamSearchParams
from octavo.core.sampling_params import DEFAULT_LIMITS, SamplingParams

if TYPE_CHECKING:
    from octavo.engine_args import EngineArgs
    from octavo.llm import LLM

COLUMNS = {
    "system": "system",
    "beam_width": "beams",
    "prompt_tokens": "prompt tokens",
    "output_tokens": "new tokens",
    "seconds": "median s",
    "output_tokens_per_second": "new tokens/s",
    "ratio": "ratio",
}

Sequences = list[tuple[int, ...]]
"""Outputs of a search, best first."""
Search = Callable[[list[int], BeamSearchParams], Sequences]


def search_in_core(llm: "LLM", prompt: list[int], params: BeamSearchParams) -> Sequences:
    (output,) = llm.beam_search([prompt], params)
    return [tuple(sequence.tokens[len(prompt) :]) for sequence in output.sequences]


def search_outside(llm: "LLM", prompt: list[int], params: BeamSearchParams) -> Sequences:
    """Every beam a new prompt at each step. ``params.max_tokens`` is not None."""
    assert params.max_tokens is not None
    search = BeamSearch(params, llm.get_tokenizer().eos_token_ids, params.max_tokens)
    limits = replace(DEFAULT_LIMITS, logprobs=search.num_candidates)
    one_token = SamplingParams(temperature=0.0, max_tokens=1, logprobs=search.num_candidates, limits=limits)
    beams = [prompt]
    while beams:
        outputs = llm.generate(beams, one_token)
        entries = [entry for output in outputs for entry in output.outputs[0].logprobs or ()]
        going = search.advance([entry.top for entry in entries])
        beams = [[*beams[place], token_id] for place, token_id in going]
    return [hypothesis.token_ids for hypothesis in search.finished]


@dataclass(slots=True)
class Searcher:
    """A way to search with an engine, of which the prefix cache is emptied before each run. ``found``: what each run
    came to."""

    llm: "LLM"
    search: Search
    beam_width: int
    found: list[Sequences]

    def run(self, workload: Workload) -> float:
        """Searches one prompt after another, to the full length. Seconds."""
        self.llm.reset_prefix_cache()
        seconds = 0.0
        for prompt, output_len in zip(workload.prompts, workload.output_lens, strict=True):
            params = BeamSearchParams(self.beam_width, output_len, ignore_eos=True)
            start = time.perf_counter()
            self.found.append(self.search(prompt, params))
            seconds += time.perf_counter() - start
        return seconds


def searchers(engine_args: "EngineArgs", beam_width: int) -> dict[str, Searcher]:
    """What is compared, the core first. The engine that caches serves it and one of the loops."""
    from octavo.llm import LLM

    cached = LLM(**asdict(replace(engine_args, enable_prefix_caching=True)))
    uncached = LLM(**asdict(replace(engine_args, enable_prefix_caching=False)))
    ways = {
        "in the core": (cached, search_in_core),
        "a loop outside, no prefix cache": (uncached, search_outside),
        "a loop outside, prefix cache": (cached, search_outside),
    }
    return {name: Searcher(llm, partial(search, llm), beam_width, []) for name, (llm, search) in ways.items()}


@click.command("beam")
@model_option
@click.option("--beam-width", type=click.IntRange(1, 64), default=4, show_default=True, help="Beams of the search.")
@click.option("--input-len", type=click.IntRange(1), default=256, show_default=True, help="Tokens of the prompt.")
@click.option("--output-len", type=click.IntRange(1), default=256, show_default=True, help="New tokens of each beam.")
@click.option("--repeats", type=click.IntRange(1), default=1, show_default=True, help="Medians are shown.")
@json_option
@engine_options
def beam(
    engine_args: "EngineArgs",
    beam_width: int,
    input_len: int,
    output_len: int,
    repeats: int,
    json_path: Path | None,
) -> None:
    """Compare beam search in the core with a loop outside it that sends every beam as a new prompt at each step.

    A repeat searches one new prompt of random tokens; EOS is ignored. --seed draws the prompts. The ratio is the
    core's speed over a loop's. Without a prefix cache the loop takes minutes at the lengths given here.
    """
    engine_args = replace(engine_args, threads=engine_args.threads or len(os.sched_getaffinity(0)))
    lengths = Lengths(input_len, output_len)
    systems = searchers(engine_args, beam_width)
    runs: dict[str, Run] = {name: searcher.run for name, searcher in systems.items()}
    core = next(iter(systems.values()))
    vocab_size, source = core.llm.get_tokenizer().vocab_size, random.Random(engine_args.seed or 0)
    compare(runs, iter([make_workload([Lengths(8, 2)], vocab_size, source)]), repeats=1)  # warm-up
    seconds = compare(runs, iter(lambda: make_workload([lengths], vocab_size, source), None), repeats)
    for name, searcher in systems.items():
        assert searcher.found == core.found, f"{name}: every way to search finds the same"
    rows = figures([Lengths(input_len, beam_width * output_len)], seconds)
    report("beam", [row | {"beam_width": beam_width} for row in rows], COLUMNS, json_path)
