"""The ``octavo`` command: a group whose commands are imported only when they run, so that ``--help`` is instant.

A user's mistake is one line on standard error, never a traceback: exit code 2 for wrong usage of the command line,
1 for everything else (settings that cannot work, a missing model, a request that is refused).
"""

import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

import click

from octavo import __version__
from octavo.cli.variables import warn_of_unknown
from octavo.core.errors import OctavoError
from octavo.engine.log_format import log_format_in_use, set_up_logging

logger = logging.getLogger(__name__)


class LazyCommand(NamedTuple):
    """A command that has not been imported: ``target`` is "module:attribute"; ``help`` is its line in the list."""

    target: str
    help: str


class LazyGroup(click.Group):
    """A group that imports a command when it is invoked, and lists commands without importing any."""

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, _, attribute = self.lazy[cmd_name].target.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.lazy[cmd_name].target} is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in self.lazy.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; an error that Octavo raised on purpose becomes one line and exit code 1."""
        try:
            return super().invoke(ctx)
        except OctavoError as error:
            raise click.ClickException(str(error)) from error


COMMANDS = {
    "serve": LazyCommand("octavo.cli.serve_command:serve", "Serve a model over HTTP with the OpenAI API."),
    "run-batch": LazyCommand("octavo.cli.run_batch_command:run_batch", "Answer the requests in a file."),
    "generate": LazyCommand("octavo.cli.generate:generate", "Complete a prompt, streaming the text."),
    "chat": LazyCommand("octavo.cli.chat:chat", "Hold a conversation in the terminal."),
    "pull": LazyCommand("octavo.cli.pull:pull_command", "Fetch a built-in model into the cache folder."),
    "inspect": LazyCommand("octavo.cli.inspect:inspect_command", "Show what a model is and what its KV memory costs."),
    "simulate": LazyCommand("octavo.cli.simulate:simulate", "Replay a trace through the scheduler, without a model."),
    "calibrate": LazyCommand("octavo.cli.calibrate:calibrate", "Measure what steps cost here, for the simulator."),
    "plan": LazyCommand("octavo.cli.plan:plan_command", "Plan the memory of a server before there is one."),
    "top": LazyCommand("octavo.cli.top:top", "Watch a running server."),
    "doctor": LazyCommand("octavo.cli.doctor:doctor", "Say what is wrong with a server, and which setting to turn."),
    "bench": LazyCommand("octavo.cli.bench:bench", "Measure latency, throughput and memory."),
}

EPILOG = (
    "Every setting may also come from an OCTAVO_* variable (--max-model-len: OCTAVO_MAX_MODEL_LEN) or a YAML file "
    "named by --config; a flag wins over a variable, and a variable over the file."
)


@click.group(cls=LazyGroup, lazy=COMMANDS, epilog=EPILOG)
@click.version_option(__version__, message="octavo %(version)s")
@click.pass_context
def octavo(ctx: click.Context) -> None:
    """Serve Transformer language models through paged KV memory."""
    found = (octavo.get_command(ctx, name) for name in octavo.list_commands(ctx))
    warn_of_unknown(os.environ, [command for command in found if command is not None])


def _logs_json(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a server is asked to log in JSON, as far as is seen before anything is read: a flag that does not exist
    is to be a line of its log as well. What a YAML file says is seen when that has been read."""
    if arguments[:1] != ["serve"]:
        return False
    flags = [text.partition("=") for text in arguments]
    given = [value or following for (flag, _, value), (following, _, _) in pairwise([*flags, ("", "", "")])
             if flag == "--log-format"]  # fmt: skip
    return (given or [environment.get("OCTAVO_LOG_FORMAT", "")])[-1] == "json"


def main() -> None:
    """The console script. Ctrl-C ends it as a signal would (exit code 130), without a word."""
    if _logs_json(sys.argv[1:], os.environ):
        set_up_logging(logging.INFO, "json")
    try:
        octavo(prog_name="octavo", standalone_mode=False)
    except click.Abort:
        sys.exit(128 + signal.SIGINT)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        if log_format_in_use() == "json":
            logger.error("%s", error.format_message())  # noqa: TRY400  (a sentence, no fault of the code)
        else:
            error.show()
        sys.exit(error.exit_code)
