"""``octavo top``: what a running server does, looked at over HTTP."""

import itertools
import time
from collections.abc import Iterator

import click

from octavo.cli.options import setting
from octavo.cli.top_reader import Reading, ServerReader
from octavo.cli.top_screen import screen

CLEAR = "\x1b[H\x1b[2J"


@click.command("top")
@setting("--url", default="http://127.0.0.1:8000", show_default=True, help="Where the server is.")
@setting("--api-key", help="The server's key; with the admin's, single requests are shown too.")
@click.option(
    "--interval", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds between two looks."
)
@click.option("--limit", type=click.IntRange(1, 1024), default=20, show_default=True, help="Requests to show.")
@click.option("--once", is_flag=True, help="Print once, after one interval, and end: for scripts.")
def top(url: str, api_key: str | None, interval: float, limit: int, once: bool) -> None:
    """Show what a running server does: running and waiting requests, memory, tokens a second, and what was decided
    last about each request. Ctrl-C ends it."""
    looks = _looks(ServerReader(url, api_key, limit), interval)
    for before, now in itertools.pairwise(looks):
        shown = screen(url, before, now)
        click.echo(shown if once else CLEAR + shown)
        if once:
            return


def _looks(reader: ServerReader, interval: float) -> Iterator[Reading]:
    while True:
        yield reader.read()
        time.sleep(interval)
