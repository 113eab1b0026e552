"""The command: which engines and cells, then the table."""

import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from octavo.bench.compare.cells import CELLS, GROUPS, SYSTEMS, Cell, System, taking_part
from octavo.bench.compare.figures import COLUMNS
from octavo.bench.compare.peers import PEERS, check_is_installed, install, is_installed
from octavo.bench.compare.run import measure, start
from octavo.bench.report import report
from octavo.cli.options import model_option
from octavo.cli.table import json_option
from octavo.core.errors import ConfigurationError
from octavo.loading.resolve import resolve_model


class _Names(click.ParamType[list[str]]):
    """Names with commas between them, out of a list."""

    name = "names"

    def __init__(self, known: Collection[str]) -> None:
        self._known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        if isinstance(value, list):
            return value
        names = [name.strip() for name in value.split(",") if name.strip()]
        unknown = [name for name in names if name not in self._known]
        if unknown or not names:
            self.fail(f"{', '.join(unknown) or 'nothing'} is none of {', '.join(self._known)}", param, ctx)
        return names


def choose_systems(peers: Sequence[str] | None, groups: Sequence[str], cells: Sequence[Cell]) -> list[System]:
    """Those that have something to run, Octavo with them.

    Raises:
        ConfigurationError: a peer that was asked for is not installed, or none is.
    """
    if peers is None:
        peers = [name for name in PEERS if is_installed(name)]
        if not peers:
            raise ConfigurationError(
                "no engine is installed to compare with; octavo bench compare --install NAME makes one ready: "
                + ", ".join(PEERS)
            )
    for name in peers:
        check_is_installed(name)
    chosen = [system for system in SYSTEMS if system.group in groups and (not system.peer or system.peer in peers)]
    used = [system for system in chosen if any(system in taking_part(cell, chosen) for cell in cells)]
    if not used:
        raise ConfigurationError(
            f"{', '.join(peers)}: no part in {', '.join(cell.name for cell in cells)} with the weights "
            f"{', '.join(groups)}; choose other --cells, --peers or --weights"
        )
    return used


@click.command("compare")
@model_option
@click.option("--peers", type=_Names(PEERS), help="With commas between.  [default: all that are installed]")
@click.option("--cells", type=_Names(CELLS), default=",".join(CELLS), show_default=True, help="Workloads.")
@click.option("--weights", type=_Names(GROUPS), default=",".join(GROUPS), show_default=True, help="Kinds of weights.")
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Medians are shown.")
@click.option("--threads", type=click.IntRange(1), help="Of every engine.  [default: the cores allowed]")
@click.option("--install", "wanted", type=_Names(PEERS), help="Install these peers, and measure nothing.")
@json_option
def compare(
    model: str | None,
    peers: list[str] | None,
    cells: list[str],
    weights: list[str],
    repeats: int,
    threads: int | None,
    wanted: list[str] | None,
    json_path: Path | None,
) -> None:
    """Measure Octavo and other engines in turns: same model, same prompts, same threads, greedy, to full length.

    Each engine runs in a process and an environment of its own below the cache folder; --install makes that.
    MODEL is a .gguf file or a built-in name.
    """
    if wanted:
        for name in wanted:
            install(name, lambda line: click.echo(line, err=True))
        return
    chosen = [CELLS[name] for name in cells]
    systems = choose_systems(peers, weights, chosen)
    path = resolve_model(model or "smollm2-135m")
    threads = threads or len(os.sched_getaffinity(0))
    with ExitStack() as stack:
        rows = measure(start(path, systems, chosen, threads, stack), chosen, repeats, threads)
    report("compare", rows, COLUMNS, json_path)
