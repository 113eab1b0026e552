"""How every benchmark ends: the machine, a table for people, the same figures as JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from octavo.cli.machine import machine_line
from octavo.cli.table import print_table, write_json


def report(name: str, rows: Sequence[Mapping[str, object]], columns: Mapping[str, str], json_path: Path | None) -> None:
    """Prints ``columns`` (key -> heading with unit) of ``rows``; writes all of each row under ``name``.

    Raises:
        ConfigurationError: the JSON file cannot be written.
    """
    click.echo(machine_line())
    print_table(rows, columns)
    write_json(json_path, {name: list(rows)})
