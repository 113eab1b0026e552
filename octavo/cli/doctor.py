"""``octavo doctor``: what is wrong with a running server, and which setting to turn."""

import sys
import time
from pathlib import Path

import click
from tqdm import tqdm

from octavo.cli.doctor_report import as_json, print_report
from octavo.cli.options import setting
from octavo.cli.table import json_option, write_json
from octavo.cli.top_reader import ServerReader
from octavo.doctor.finding import Report
from octavo.doctor.series import ServerSummary
from octavo.doctor.server import examine_server

SEVERE_EXIT_CODE = 3
"""1 and 2 say that the command could not do its work."""


@click.command("doctor")
@click.argument("source", metavar="URL")
@setting("--api-key", help="The server's key; with the admin's, more can be told.")
@click.option(
    "--interval", type=click.FloatRange(0.1), default=10.0, show_default=True, help="Seconds between two looks."
)
@json_option
def doctor(source: str, api_key: str | None, interval: float, json_path: Path | None) -> None:
    """Say what is wrong with the server at URL, which setting to turn, and what that would gain.

    The exit code is 3 if something severe was found, else 0. docs/doctor.md says what is looked for.
    """
    report = _examine_server(ServerReader(source, api_key, limit=1), interval)
    print_report(report)
    write_json(json_path, {"doctor": as_json(report)})
    if report.is_severe:
        sys.exit(SEVERE_EXIT_CODE)


def _examine_server(reader: ServerReader, interval: float) -> Report:
    before = reader.read()
    pool = reader.read_pool()
    for _ in tqdm(range(10), desc="watching", disable=not sys.stderr.isatty(), leave=False):
        time.sleep(interval / 10)
    now = reader.read()
    max_num_seqs = None if pool is None else pool["max_num_seqs"]
    summary = ServerSummary.of(
        now.model, before.figures, now.figures, now.time - before.time, max_num_seqs=max_num_seqs
    )
    return examine_server(reader.url, summary)
