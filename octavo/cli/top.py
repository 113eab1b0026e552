"""``octavo top``: what a running server does, looked at over HTTP."""

import importlib.util
import itertools
import sys
import time
from collections.abc import Iterator

import click

from octavo.cli.options import setting
from octavo.cli.top_reader import MAX_INTERVAL, Reading, ServerReader
from octavo.cli.top_screen import screen
from octavo.cli.units import Number

NO_MAP = "\n\nThe map of the pool needs textual (pip install textual, or Octavo's extra tui)."
CLEAR = "\x1b[H\x1b[2J"


@click.command("top")
@click.argument("address", metavar="[URL]", required=False)
@setting("--url", default="http://127.0.0.1:8000", show_default=True, help="Where the server is.")
@setting("--api-key", help="The server's key; with the admin's, single requests are shown too.")
@click.option(
    "--interval", type=Number(0.1, MAX_INTERVAL), default=2.0, show_default=True, help="Seconds between two looks."
)
@click.option("--limit", type=click.IntRange(1, 1024), default=20, show_default=True, help="Requests to show.")
@click.option("--once", is_flag=True, help="Print once, after one interval, and end: for scripts.")
@click.option("--plain", is_flag=True, help="Text alone, without the map; so it is too where textual is not installed.")
def top(
    address: str | None, url: str, api_key: str | None, interval: float, limit: int, once: bool, plain: bool
) -> None:
    """Show what the server at URL does: a map of its pool, running and waiting requests, tokens a second; as text also
    what was decided last about each request. Ctrl-C ends it."""
    reader = ServerReader(address or url, api_key, limit)
    is_plain = once or plain or not sys.stdout.isatty()
    has_map = importlib.util.find_spec("textual") is not None
    if has_map and not is_plain:
        from octavo.cli.top_app import TopApp

        reader.read()  # what is wrong is told before the screen is taken
        TopApp(reader, interval).run()
        return
    looks = _looks(reader, interval)
    for before, now in itertools.pairwise(looks):
        shown = screen(reader.url, before, now) + ("" if is_plain else NO_MAP)
        click.echo(shown if once else CLEAR + shown)
        if once:
            return


def _looks(reader: ServerReader, interval: float) -> Iterator[Reading]:
    while True:
        yield reader.read()
        time.sleep(interval)
