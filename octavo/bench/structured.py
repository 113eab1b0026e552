"""``octavo bench structured``: what schemas are followed, and exactly; what masks cost, alone and in a step."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from octavo.bench.latency import Batch, time_batch
from octavo.bench.report import report
from octavo.bench.schema_set import follow_schemas, read_schemas
from octavo.cli.options import engine_options_with, model_option
from octavo.cli.table import json_option
from octavo.core.sampling_params import SamplingParams
from octavo.engine.interface import EngineLoop
from octavo.engine.messages import EngineRequest

if TYPE_CHECKING:
    from octavo.engine_args import EngineArgs

SCHEMA_COLUMNS = {
    "schemas": "schemas",
    "refused": "refused",
    "valid": "valid",
    "valid_percent": "accepted %",
    "invalid": "invalid",
    "invalid_percent": "rejected %",
    "compile_milliseconds": "compile ms",
    "most_compile_milliseconds": "most",
    "mask_microseconds": "mask us",
    "late_mask_microseconds": "p99",
    "most_mask_microseconds": "most",
}
STEP_COLUMNS = {
    "batch_size": "sequences",
    "constraint": "constraint",
    "milliseconds_per_step": "ms/step",
    "more_percent": "more %",
}

CONSTRAINTS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "schema": {
        "json": {
            "type": "array",
            "minItems": 10_000,
            "items": {
                "type": "object",
                "properties": {"id": {"type": "integer"}, "name": {"type": "string"}, "kind": {"enum": ["a", "b"]}},
                "required": ["id", "name", "kind"],
                "additionalProperties": False,
            },
        }
    },
    "regex": {"regex": r"([a-z]{1,12}[ ,.]){10000}"},
}
"""Texts that never come to an end within the run."""


def measure_steps(engine: EngineLoop, batch: Batch, num_iters: int) -> list[dict[str, object]]:
    """The median step of each of ``CONSTRAINTS``, taken in turns; what it takes more is the median of the turns'
    ratios, which a machine that becomes slower in between does not change."""
    batches = {name: replace(batch, structured_outputs=asked) for name, asked in CONSTRAINTS.items()}
    for each in batches.values():
        _compile(engine, each)
    seconds: dict[str, list[float]] = {name: [] for name in batches}  # the median step of each turn
    for turn in range(num_iters + 1):
        for name, each in batches.items():
            timing = time_batch(engine, each, random.Random(0))
            if turn:  # the first one warms up
                seconds[name].append(median(step.seconds for step in timing.steps))
    return [
        {
            "batch_size": batch.batch_size,
            "constraint": name,
            "milliseconds_per_step": 1e3 * median(each),
            "more_percent": 100 * median(_more(each, seconds["none"])) if name != "none" else None,
        }
        for name, each in seconds.items()
    ]


def _more(each: Sequence[float], plain: Sequence[float]) -> list[float]:
    return [with_form / without - 1 for with_form, without in zip(each, plain, strict=True)]


def _compile(engine: EngineLoop, batch: Batch) -> None:
    """So that requests of the batch wait for no grammar."""
    params = SamplingParams(temperature=0.0, max_tokens=1, structured_outputs=batch.structured_outputs)
    engine.add_request(EngineRequest("compile", [1], params, arrival_time=0.0))
    while not any(delta.finish_reason for delta in engine.step().deltas):
        pass


def measure_schemas(path: Path, model: str) -> Sequence[dict[str, object]]:
    from octavo.loading.resolve import resolve_model
    from octavo.loading.tokenizer import load_tokenizer

    return [follow_schemas(read_schemas(path), load_tokenizer(resolve_model(model))).row]


@click.command("structured")
@model_option
@click.option(
    "--schemas",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Follow these: JSON lines with schema and tests (data, valid), perhaps compressed with gzip.",
)
@click.option("--batch-size", type=click.IntRange(1), default=16, show_default=True, help="Sequences at once.")
@click.option("--input-len", type=click.IntRange(1), default=32, show_default=True, help="Tokens of each prompt.")
@click.option("--output-len", type=click.IntRange(2), default=128, show_default=True, help="Tokens of each answer.")
@click.option("--num-iters", type=click.IntRange(1), default=5, show_default=True, help="Turns counted.")
@json_option
@engine_options_with(speculation="off")
def structured(
    engine_args: "EngineArgs", schemas: Path | None, num_iters: int, json_path: Path | None, **shape: Any
) -> None:
    """Time steps with constrained answers against steps without. With --schemas, follow schemas instead: how many are
    supported, how exactly they are followed, and what compiling and masks take."""
    if schemas is not None:
        report("structured", measure_schemas(schemas, engine_args.model), SCHEMA_COLUMNS, json_path)
        return
    from octavo.build import build_engine

    rows = measure_steps(build_engine(engine_args), Batch(**shape), num_iters)
    report("structured", rows, STEP_COLUMNS, json_path)
