"""``octavo calibrate``: a cost model for the simulator, from this machine and this model."""

import gc
import json
import os
import random
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from tqdm import tqdm

from octavo import __version__
from octavo.cli.machine import describe_machine, machine_line
from octavo.cli.options import ENGINE_FIELDS, engine_options_with, model_argument
from octavo.cli.table import output_file, print_table, write_text
from octavo.core.errors import ConfigurationError
from octavo.sim.calibration import SETTINGS
from octavo.sim.cost_text import costs_document
from octavo.sim.costs import BlockCosts, LinearCosts
from octavo.sim.fit import TERMS, Cell, Fitted, fit_and_check

if TYPE_CHECKING:
    from octavo.engine.interface import EngineLimits
    from octavo.engine_args import EngineArgs

FRONT_TITLES = {
    "per_request": "the front takes in a request",
    "delay": "way to the engine and back",
    "per_step": "beside clients, a step more",
    "per_token": "and for each token more",
}
TITLES = {
    "base": "a step",
    "per_decode": "a row that decodes",
    "per_decode_context": "a token of its context",
    "per_chunk": "a chunk of a prompt",
    "per_chunk_token": "a token of it",
    "per_chunk_context": "a token of its context",
    "per_chunk_pair": "a pair of tokens that attend in it",
}


@click.command("calibrate")
@model_argument
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=output_file,
    default="costs.json",
    show_default=True,
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Over all that is measured.")
@engine_options_with(speculation="off")
def calibrate(engine_args: "EngineArgs", output: Path, rounds: int) -> None:
    """Measure what steps of MODEL cost on this machine, for `octavo simulate` and `octavo plan` --cost-model FILE.

    First the engine alone runs prompts, batches and contexts of several sizes, then a server and a client on this
    machine show what the front adds. Nothing else should run meanwhile. Nothing is drafted unless --speculation ngram,
    which the simulator does not know.
    """
    if engine_args.max_steps_in_flight > 1:
        raise ConfigurationError("calibrate times one step after the other; leave max_steps_in_flight at 1")
    cells, limits = measure_steps(engine_args, rounds)
    found = fit_and_check(cells)
    costs = measure_front(engine_args, limits, replace(found.costs, blocks=measure_blocks(engine_args)), rounds)
    report(costs, found)
    origin = {
        "model": engine_args.model,
        "settings": served_settings(engine_args, limits),
        "threads": engine_args.threads or len(os.sched_getaffinity(0)),
        "octavo": __version__,
        "machine": describe_machine(),
        "relative_errors": {
            "own": found.own._asdict() | {"num_cells": found.num_own},
            "held_out": found.held_out._asdict() | {"num_cells": found.num_held_out},
        },
    }
    write_text(output, json.dumps(costs_document(costs, origin), indent=2) + "\n")
    click.echo(f"written to {output}: octavo simulate TRACE --cost-model {output}")


def served_settings(args: "EngineArgs", limits: "EngineLimits") -> dict[str, int]:
    """``octavo.sim.calibration.SETTINGS`` of a server with these settings, as they turn out."""
    from octavo.bench.calibrate.predict import settings_like

    served = settings_like(args, limits)
    known = asdict(served.scheduler) | asdict(served.cache)
    return {name: known[name] for name in SETTINGS}


def measure_steps(args: "EngineArgs", rounds: int) -> tuple[list[Cell], "EngineLimits"]:
    """The engine alone, in this process; it is gone afterwards, with its memory."""
    from octavo.bench.calibrate.sweep import PlanWatch, Sweep
    from octavo.build import build_engine

    watch = PlanWatch()
    engine = build_engine(args, timed=watch)
    sweep = Sweep(engine, watch, random.Random(args.seed or 0))
    for number in _shown("steps", rounds, len(sweep.scenes)):
        sweep.play(number)
    cells, limits = sweep.cells(), engine.limits
    engine.close()
    del engine, sweep
    gc.collect()
    return cells, limits


def measure_front(args: "EngineArgs", limits: "EngineLimits", costs: LinearCosts, rounds: int) -> LinearCosts:
    """``costs`` with those of the front of a server with the same settings."""
    from octavo.bench.calibrate.front import FrontRuns
    from octavo.bench.calibrate.predict import settings_like
    from octavo.bench.serve.command import check_it_answers
    from octavo.bench.serve.exchange import Target, split_url
    from octavo.bench.serve.server import first_model
    from octavo.bench.server_process import running_server

    with running_server(serve_arguments(args)) as port:
        target = Target(*split_url(f"http://127.0.0.1:{port}"), None)
        target = replace(target, model=first_model(target))
        check_it_answers(target)
        runs = FrontRuns(target, settings_like(args, limits), limits.vocab_size, random.Random(args.seed or 0))
        for number in _shown("server", rounds, runs.num_runs):
            runs.play(number)
        return replace(costs, front=runs.front(costs))


def measure_blocks(args: "EngineArgs") -> BlockCosts:
    """What sizes of blocks cost with this back end and the model's heads."""
    from octavo.bench.calibrate.blocks import block_costs
    from octavo.kernels.interface import AttentionSpec
    from octavo.kernels.registry import select_ops
    from octavo.loading.planned_model import planned_model

    config = planned_model(args.model).config
    spec = AttentionSpec(config.num_heads, config.num_kv_heads, config.head_dim, config.scale)
    return block_costs(select_ops(args.backend), spec, args.kv_dtype)


def serve_arguments(args: "EngineArgs") -> list[str]:
    """Of `octavo serve`, the model first: what differs from the defaults."""
    defaults = {field.name: field.default for field in fields(args)}
    arguments = [args.model]
    for name in ENGINE_FIELDS:
        value, flag = getattr(args, name), name.replace("_", "-")
        if name == "model" or value == defaults[name]:
            continue
        if isinstance(value, bool):
            arguments.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            arguments += [f"--{flag}", str(value)]
    return arguments


def report(costs: LinearCosts, found: Fitted) -> None:
    """What each thing costs, and how far the fit is off."""
    click.echo(machine_line())
    rows = [{"what": TITLES[name], "cost": 1e6 * getattr(costs, name)} for name in TERMS]
    rows.append({"what": "to give out a block, in these", "cost": 1e6 * costs.blocks.seconds})
    rows += [{"what": FRONT_TITLES[name], "cost": 1e6 * value} for name, value in asdict(costs.front).items()]
    print_table(rows, {"what": "what", "cost": "microseconds"})
    factors = ", ".join(f"{factor:.2f} at {size:g}" for size, factor in costs.blocks.context_factors)
    click.echo(f"time for a token of context by the size of blocks: {factors}")
    titles = {"steps": (found.num_own, found.own), "steps held out of the fit": (found.num_held_out, found.held_out)}
    for title, (count, each) in titles.items():
        click.echo(f"{count} kinds of {title}: {each.median:.1%} off at the median, {each.p90:.1%} at p90")


def _shown(title: str, rounds: int, count: int) -> Iterator[int]:
    """Numbers of what is to be played, with a bar."""
    yield from tqdm(list(range(count)) * rounds, desc=title, unit="", disable=None, leave=False)
