"""OCTAVO_* variables that no setting reads: a misspelt one would otherwise do nothing, without a word."""

import logging
from collections.abc import Iterable, Iterator, Mapping

import click

from octavo.engine.log_format import log_format_in_use
from octavo.nearest import nearest

logger = logging.getLogger(__name__)

PREFIX = "OCTAVO_"

WITHOUT_FLAG = frozenset({"OCTAVO_CACHE", "OCTAVO_ISA"})
"""Read where they are used; see docs/settings.md."""


def warn_of_unknown(environment: Mapping[str, str], commands: Iterable[click.Command]) -> None:
    """One line on standard error for each variable that looks like a setting and is one of no command."""
    given = sorted(name for name in environment if name.startswith(PREFIX))
    known = WITHOUT_FLAG.union(*map(_variables, commands)) if given else WITHOUT_FLAG
    for name in given:
        if name not in known:
            near = nearest(name[len(PREFIX) :], [other[len(PREFIX) :] for other in known])
            hint = f"; did you mean {PREFIX}{near}?" if near else ""
            message = f"the variable {name} is no setting of Octavo and is ignored{hint}"
            if log_format_in_use() == "json":
                logger.warning("%s", message)
            else:
                click.echo(f"Warning: {message}", err=True)


def _variables(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        names = parameter.envvar or ()
        yield from [names] if isinstance(names, str) else names
