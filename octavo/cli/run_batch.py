"""What ``octavo run-batch`` runs: the batch through the app that ``octavo serve`` serves, in this process."""

import functools
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from octavo.cli.serve import find_model
from octavo.core.errors import ConfigurationError
from octavo.engine.log_format import set_up_logging
from octavo.engine.spawn import SpawnedProcess
from octavo.server.batches.batch import Batch
from octavo.server.batches.progress import Progress
from octavo.server.batches.run import run_batch
from octavo.server.life import Model
from octavo.server.settings import ServerSettings

if TYPE_CHECKING:
    from octavo.engine_args import EngineArgs

MAX_OPEN_PER_SEQUENCE = 2
"""Lines that are open for each sequence of a step: while some are computed, as many others are made ready."""


def run(
    engine_args: "EngineArgs", settings: ServerSettings, input_path: Path, output_path: Path, *, overwrite: bool
) -> None:
    """Answer ``input_path``, as far as ``output_path`` does not do so yet.

    Raises:
        ConfigurationError, EngineDeadError, SystemExit: see ``answer``.
    """
    # A bar and the lines of a log would get into each other's way.
    set_up_logging(logging.WARNING if sys.stderr.isatty() else logging.INFO, "text")
    limit = settings.limits.body_bytes
    with Batch(input_path, output_path, settings.served_model_name, limit, overwrite=overwrite) as batch:
        max_open = MAX_OPEN_PER_SEQUENCE * engine_args.max_num_seqs
        answer(batch, settings, max_open, functools.partial(find_model, engine_args), ["octavo.build"])


def answer(
    batch: Batch,
    settings: ServerSettings,
    max_open: int,
    find_model: Callable[[], Model],
    engine_modules: list[str],
) -> None:
    """``engine_modules``: what the engine's process imports beforehand.

    Raises:
        ConfigurationError, EngineDeadError: see octavo.server.batches; or the input was changed meanwhile.
        SystemExit: it was stopped; or the server failed on a line (code 1).
    """
    if batch.needs_model():
        with SpawnedProcess(engine_modules) as spawned:
            progress = run_batch(batch, settings, max_open, find_model, spawned)
    else:
        progress = Progress(batch.num_lines, batch.num_before, batch.num_unreadable)
        progress.close()
    ended_badly = f"{progress.num_refused:,} got an error as their answer and {progress.num_failed:,} failed"
    click.echo(f"{progress.done} are answered; in this run {ended_badly}.")
    if batch.has_changed:
        raise ConfigurationError("the input was changed meanwhile; what is written is of the lines as they were read")
    if progress.num_failed:
        raise SystemExit(1)
