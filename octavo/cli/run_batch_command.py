"""``octavo run-batch``: the flags; octavo/cli/run_batch.py runs it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.answer_options import answer_options
from octavo.cli.limit_options import limit_options
from octavo.cli.options import engine_options, model_option, setting

if TYPE_CHECKING:
    from octavo.engine_args import EngineArgs

_FILE = click.Path(path_type=Path)


@click.command("run-batch")
@click.argument("positional_input", metavar="INPUT", required=False, type=_FILE)
@click.argument("positional_output", metavar="OUTPUT", required=False, type=_FILE)
@click.option("--input-file", "-i", type=_FILE, help="The same as INPUT.")
@click.option("--output-file", "-o", type=_FILE, help="The same as OUTPUT.")
@click.option("--overwrite", is_flag=True, help="Begin anew, whatever is in the output.")
@model_option
@setting(
    "--shutdown-timeout",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    help="Seconds that open lines get after SIGTERM or Ctrl-C.",
)
@answer_options
@engine_options
@limit_options
def run_batch(
    positional_input: Path | None,
    positional_output: Path | None,
    input_file: Path | None,
    output_file: Path | None,
    overwrite: bool,
    engine_args: "EngineArgs",
    served_model_name: str | None,
    **server: Any,
) -> None:
    """Answer the requests in INPUT, a file in OpenAI's batch format, and write the answers to OUTPUT.

    A run that was stopped or killed goes on where it was when the same command is given again. Ends with code 0 if
    every line has its answer, also one that says what is wrong with the line, and with 1 if the server failed on some,
    which another run tries again (docs/batches.md).
    """
    input_path = _one_of("INPUT", positional_input, input_file)
    output_path = _one_of("OUTPUT", positional_output, output_file)
    from octavo.server.settings import ServerSettings

    name = served_model_name or engine_args.model
    settings = ServerSettings(served_model_name=name, log_stats=False, **server)
    from octavo.cli.run_batch import run

    run(engine_args, settings, input_path, output_path, overwrite=overwrite)


def _one_of(name: str, positional: Path | None, option: Path | None) -> Path:
    given = [path for path in (positional, option) if path is not None]
    if len(given) != 1:
        raise click.UsageError(f"give {name} once, as an argument or a flag")
    return given[0]
