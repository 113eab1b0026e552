"""``octavo bench interference``: a long prompt that arrives among streams, what it costs them and they it.

In one process, in turns: the prompt alone; the streams with the prompt, which arrives when each of them has some
tokens; the streams alone. The time between two tokens is compared over the same tokens of the same streams: those
that came while the prompt was computed, and in the run without it those same ones.
"""

import os
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING

import click

from octavo.bench.report import report
from octavo.cli.options import engine_options_with, model_option
from octavo.cli.table import json_option
from octavo.core.sampling_params import SamplingParams
from octavo.engine.interface import EngineLoop
from octavo.engine.messages import EngineRequest
from octavo.engine.steady_clock import steady_time

if TYPE_CHECKING:
    from octavo.engine_args import EngineArgs

COLUMNS = {
    "run": "run",
    "itl_p50_milliseconds": "ITL p50 ms",
    "itl_p99_milliseconds": "p99 ms",
    "itl_max_milliseconds": "max ms",
    "itl_p50_ratio": "p50 ratio",
    "itl_p99_ratio": "p99 ratio",
    "first_token_seconds": "TTFT s",
    "first_token_ratio": "ratio",
    "tokens_meanwhile": "tokens a stream",
}
LONG = "long"
TOKENS_BEFORE = 32
"""Of each stream, when the prompt arrives."""


@dataclass(frozen=True, slots=True)
class Scene:
    """``num_streams`` streams whose prompts have ``stream_len`` random tokens, and a prompt of ``prompt_len``; the same
    tokens each time it is played."""

    num_streams: int
    stream_len: int
    prompt_len: int
    max_model_len: int
    vocab_size: int
    seed: int

    def streams(self) -> list[EngineRequest]:
        """Each goes on as long as the context lasts."""
        return [
            self._request(str(number), self.stream_len, self.max_model_len - self.stream_len)
            for number in range(self.num_streams)
        ]

    def long(self) -> EngineRequest:
        """Its first token is all that is asked for."""
        return self._request(LONG, self.prompt_len, 1)

    def _request(self, request_id: str, length: int, max_tokens: int) -> EngineRequest:
        source = random.Random(f"{self.seed} {request_id}")
        prompt = [source.randrange(self.vocab_size) for _ in range(length)]
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        return EngineRequest(request_id, prompt, params, arrival_time=steady_time())


@dataclass(slots=True)
class Run:
    """Times of a scene, on one clock, in seconds. ``tokens``: when each token of a stream came, by its request id;
    ``sent`` and ``first_token``: of the long prompt, if it took part; ``answers``: token ids, to compare."""

    tokens: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    answers: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    sent: float = 0.0
    first_token: float = 0.0

    @property
    def seconds(self) -> float:
        return self.first_token - self.sent

    def meanwhile(self) -> tuple[int, int]:
        """The tokens of each stream, first and last, that came while the long prompt was computed."""
        spans = []
        for times in self.tokens.values():
            inside = [place for place, when in enumerate(times) if self.sent < when <= self.first_token]
            spans.append((inside[0], inside[-1]))
        return max(first for first, _ in spans), min(last for _, last in spans)

    def intervals(self, span: tuple[int, int]) -> list[float]:
        """Of all streams, up to each of these tokens from the one before it."""
        first, last = span
        return [
            after - before
            for times in self.tokens.values()
            for before, after in zip(times[first - 1 : last], times[first : last + 1], strict=True)
        ]


def play(engine: EngineLoop, streams: Sequence[EngineRequest], long: EngineRequest | None, num_tokens: int) -> Run:
    """The streams until each has ``num_tokens`` tokens; or with ``long``, which arrives when each has
    ``TOKENS_BEFORE``, until that has its first one. None of it is in the prefix cache before, and none runs after."""
    engine.reset_prefix_cache()
    run, awaits_long = Run(), long is not None
    for request in streams:
        engine.add_request(request)
    while awaits_long or not _have(run, streams, num_tokens):
        if long is not None and not run.sent and _have(run, streams, TOKENS_BEFORE):
            run.sent = time.perf_counter()
            engine.add_request(long)
        news, now = engine.step(), time.perf_counter()
        for delta in news.deltas:
            if delta.request_id == LONG:
                run.first_token, awaits_long = now, False
            else:
                run.tokens[delta.request_id] += [now] * len(delta.token_ids)
                run.answers[delta.request_id] += delta.token_ids
    for request in streams:
        engine.abort(request.request_id)
    while engine.has_work():
        engine.step()
    return run


def _have(run: Run, streams: Sequence[EngineRequest], num_tokens: int) -> bool:
    return all(len(run.tokens[stream.request_id]) >= num_tokens for stream in streams)


def measure(engine: EngineLoop, scene: Scene, repeats: int) -> list[dict[str, object]]:
    """A row for the prompt alone, the streams alone, and both; medians over the repeats, ratios each repeat's own."""
    alone, both, without, spans = list[float](), list[Run](), list[Run](), list[tuple[int, int]]()
    for _ in range(repeats):
        alone.append(play(engine, [], scene.long(), 0).seconds)
        both.append(play(engine, scene.streams(), scene.long(), 0))
        spans.append(both[-1].meanwhile())
        without.append(play(engine, scene.streams(), None, spans[-1][1] + 1))
        _check_answers(both[-1], without[-1])
    quiet, beside = (
        [_percentiles(run.intervals(span)) for run, span in zip(runs, spans, strict=True)] for runs in (without, both)
    )
    ratios = [[b / q for b, q in zip(*pair, strict=True)] for pair in zip(beside, quiet, strict=True)]
    first_tokens = [run.seconds for run in both]
    return [
        {"run": f"prompt of {scene.prompt_len} alone", "first_token_seconds": median(alone), "first_token_ratio": 1.0},
        {"run": f"{scene.num_streams} streams alone", **_row(quiet), "itl_p50_ratio": 1.0, "itl_p99_ratio": 1.0},
        {
            "run": "both",
            **_row(beside),
            "itl_p50_ratio": median(ratio[0] for ratio in ratios),
            "itl_p99_ratio": median(ratio[1] for ratio in ratios),
            "first_token_seconds": median(first_tokens),
            "first_token_ratio": median(own / other for own, other in zip(first_tokens, alone, strict=True)),
            "tokens_meanwhile": median(last - first + 1 for first, last in spans),
            "itl_p99_ratios": [ratio[1] for ratio in ratios],
            "first_token_ratios": [own / other for own, other in zip(first_tokens, alone, strict=True)],
        },
    ]


def _check_answers(one: Run, other: Run) -> None:
    for request_id, token_ids in one.answers.items():
        length = min(len(token_ids), len(other.answers[request_id]))
        assert token_ids[:length] == other.answers[request_id][:length], "a prompt beside them changes no answer"


def _percentiles(intervals: Sequence[float]) -> tuple[float, float, float]:
    """p50, p99 and the largest, in milliseconds."""
    of_hundred = quantiles(intervals, n=100)
    return 1e3 * of_hundred[49], 1e3 * of_hundred[98], 1e3 * max(intervals)


def _row(percentiles: Sequence[tuple[float, float, float]]) -> dict[str, object]:
    p50, p99, most = (median(column) for column in zip(*percentiles, strict=True))
    return {"itl_p50_milliseconds": p50, "itl_p99_milliseconds": p99, "itl_max_milliseconds": most}


@click.command("interference")
@model_option
@click.option("--num-streams", type=click.IntRange(1), default=16, show_default=True, help="That decode.")
@click.option("--stream-len", type=click.IntRange(1), default=32, show_default=True, help="Tokens of their prompts.")
@click.option("--prompt-len", type=click.IntRange(1), default=6000, show_default=True, help="Of the long prompt.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Medians are shown.")
@json_option
@engine_options_with(speculation="off")
def interference(
    engine_args: "EngineArgs",
    num_streams: int,
    stream_len: int,
    prompt_len: int,
    repeats: int,
    json_path: Path | None,
) -> None:
    """Measure what a long prompt costs streams that it arrives among, and they it.

    Compared are the same tokens of the same streams, with the prompt and without. Nothing is drafted unless
    --speculation ngram: answers to random prompts repeat themselves as no others do.
    """
    from octavo.build import build_engine

    engine_args = replace(engine_args, threads=engine_args.threads or len(os.sched_getaffinity(0)))
    engine = build_engine(engine_args)
    limits = engine.limits
    scene = Scene(num_streams, stream_len, prompt_len, limits.max_model_len, limits.vocab_size, engine_args.seed or 0)
    play(engine, scene.streams(), None, TOKENS_BEFORE)  # a warm-up
    report("interference", measure(engine, scene, repeats), COLUMNS, json_path)
