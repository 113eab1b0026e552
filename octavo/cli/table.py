"""How every ``octavo bench`` command reports: a table for people, the same figures as JSON for machines."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from octavo import __version__
from octavo.cli.machine import describe_machine
from octavo.core.errors import ConfigurationError

JSON_FORMAT = 1
"""Version of the layout that ``write_json`` writes; raised when a reader of the old one would misread it."""


def check_can_write(path: Path) -> None:
    """
    Raises:
        ConfigurationError: it cannot be written: said before what takes long, not after it.
    """
    target = path if path.exists() else path.parent
    if not target.exists():
        raise ConfigurationError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(target, os.W_OK):
        raise ConfigurationError(f"cannot write {path}: permission denied")


def output_file(_context: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
    """What options that name a file to write are checked by."""
    if path is not None:
        check_can_write(path)
    return path


json_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=output_file,
    help="Also write the figures to this file.",
)
"""``--json FILE``; the command receives ``json_path: Path | None``."""


def print_table(rows: Sequence[Mapping[str, object]], columns: Mapping[str, str]) -> None:
    """Prints ``rows`` to standard output, one line each.

    ``columns`` maps a key of the rows to its heading (with the unit) and fixes the order. Numbers stand to the right,
    text to the left; a missing or None figure is a dash.
    """
    cells = [[_cell(row.get(key)) for key in columns] for row in rows]
    headings = list(columns.values())
    numeric = [all(isinstance(row.get(key), int | float | None) for row in rows) for key in columns]
    widths = [max(len(line[i]) for line in [headings, *cells]) for i in range(len(headings))]
    for line in [headings, ["-" * width for width in widths], *cells]:
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        )
        click.echo("  ".join(padded).rstrip())


def write_json(path: Path | None, figures: Mapping[str, object]) -> None:
    """Writes ``figures`` with the version, the machine and the layout's version; does nothing where ``path`` is None.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    if path is None:
        return
    document = {
        "format": JSON_FORMAT,
        "octavo": __version__,
        "machine": describe_machine(),
        "figures": figures,
    }
    write_text(path, json.dumps(document, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a whole file.

    Raises:
        ConfigurationError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
