"""``octavo doctor``: what is wrong with a running server or with a trace, and which setting to turn."""

import sys
import time
from os.path import exists
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from octavo.cli.doctor_report import as_json, print_report
from octavo.cli.doctor_text import TEXT, examine_text, is_text
from octavo.cli.doctor_trace import examine_trace
from octavo.cli.options import setting
from octavo.cli.table import json_option, write_json
from octavo.cli.top_reader import MAX_INTERVAL, ServerReader
from octavo.cli.units import Number
from octavo.doctor.finding import Report
from octavo.doctor.series import ServerSummary
from octavo.doctor.server import examine_server
from octavo.sim.traces.request_log import MAX_BLOCK_SIZE
from octavo.sim.traces.source import FORMATS

SEVERE_EXIT_CODE = 3
"""1 and 2 say that the command could not do its work."""


@click.command("doctor")
@click.argument("source", metavar="URL|TRACE|PROMPTS")
@setting("--api-key", help="The server's key; with the admin's, more can be told.")
@click.option(
    "--interval", type=Number(0.1, MAX_INTERVAL), default=10.0, show_default=True, help="Seconds between two looks."
)
@click.option("--format", "format_", type=click.Choice((*FORMATS, TEXT)), help="Of TRACE.  [default: as it looks]")
@click.option("--lenient", is_flag=True, help="Leave out lines that are no requests, and count them.")
@click.option("--limit", type=click.IntRange(1), help="Read so many requests at most.")
@click.option("--num-blocks", type=click.IntRange(1), help="Blocks in the KV cache of the server that TRACE is for.")
@click.option(
    "--block-size",
    type=click.IntRange(1, MAX_BLOCK_SIZE),
    help="Tokens in such a block.  [default: as the trace says, else 16]",
)
@click.option("--tokenizer", metavar="MODEL", help="Whose tokens prompts are compared by.  [default: characters]")
@json_option
def doctor(source: str, json_path: Path | None, **given: Any) -> None:
    """Say what is wrong with the server at URL, or with the requests of TRACE or PROMPTS, which setting to turn, and
    what that would gain.

    TRACE is what octavo simulate reads, such as the log of octavo serve --record. PROMPTS are JSON lines in OpenAI's
    batch format, or with messages or a prompt each. The exit code is 3 if something
    severe was found, else 0. docs/doctor.md says what is looked for.
    """
    if _is_address(source):
        report = _examine_server(ServerReader(source, given["api_key"], limit=1), given["interval"])
    else:
        report = _examine_file(source, given)
    print_report(report)
    write_json(json_path, {"doctor": as_json(report)})
    if report.is_severe:
        sys.exit(SEVERE_EXIT_CODE)


def _is_address(source: str) -> bool:
    """``host:8000`` is meant to be one, though the reader refuses it."""
    return "://" in source or (":" in source and not exists(source))


def _examine_file(trace: str, given: dict[str, Any]) -> Report:
    name, reading = given["format_"], {"lenient": given["lenient"], "limit": given["limit"]}
    if name == TEXT or (name is None and is_text(trace)):
        return examine_text(trace, given["tokenizer"], **reading)
    return examine_trace(trace, name, num_blocks=given["num_blocks"], block_size=given["block_size"], **reading)


def _examine_server(reader: ServerReader, interval: float) -> Report:
    before = reader.read()
    max_num_seqs = reader.read_max_num_seqs()
    for _ in tqdm(range(10), desc="watching", disable=not sys.stderr.isatty(), leave=False):
        time.sleep(interval / 10)
    now = reader.read()
    summary = ServerSummary.of(
        now.model, before.figures, now.figures, now.time - before.time, max_num_seqs=max_num_seqs
    )
    return examine_server(reader.url, summary)
