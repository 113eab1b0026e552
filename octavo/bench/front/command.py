"""The command: a table of throughput, and one of first events."""

import os
from collections.abc import Sequence
from pathlib import Path

import click

from octavo.bench.front.cases import CASES, by_server
from octavo.bench.front.measure import Background, Cores, first_delta, first_events, limit, milliseconds, throughput
from octavo.cli.machine import machine_line
from octavo.cli.table import json_option, print_table, write_json
from octavo.core.errors import ConfigurationError

THROUGHPUT = {
    "what": "streams",
    "tokens_per_second": "tokens/s",
    "tokens_per_cpu_second": "tokens/s of CPU time",
    "cpu_us_per_token": "us of CPU/token",
    "core_percent": "% of the core",
    "events_per_token": "events/token",
}
FIRST_EVENT = {
    "what": "first event",
    "direct_ms": "engine alone, ms",
    "http_ms": "over HTTP, ms",
    "added_ms": "added, ms",
    "cpu_ms": "ms of CPU/request",
}
TTFT_CASES = ("completions", "chat", "chat, tools not called")
LOAD_TOKENS_PER_SECOND = 8000.0
ALONE = Background(0, 1.0)


def two_cores() -> Cores:
    """
    Raises:
        ConfigurationError: there is one only.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise ConfigurationError("the server and those that keep it busy need a core each; this process has one")
    return Cores(cores[0], cores[1])


def first_event_rows(cores: Cores, names: Sequence[str], busy: Background, repeats: int) -> list[dict[str, object]]:
    """Medians, alone and beside ``busy``. What HTTP adds is the difference."""
    backgrounds = {"alone": ALONE, f"beside {busy.tokens_per_second:,.0f} tokens/s": busy}
    direct = {beside: milliseconds(first_delta(cores, each, repeats)) for beside, each in backgrounds.items()}
    rows: list[dict[str, object]] = []
    for name in names:
        found = first_events(CASES[name], cores, list(backgrounds.values()), repeats)
        for beside, events in zip(backgrounds, found, strict=True):
            over_http = milliseconds(events.seconds)
            row: dict[str, object] = {"what": f"{name}, {beside}", "direct_ms": direct[beside], "http_ms": over_http}
            row["added_ms"] = over_http - direct[beside]
            if backgrounds[beside] is ALONE:
                row["cpu_ms"] = 1000 * events.cpu_seconds / repeats
            rows.append(row)
    return rows


@click.command("front")
@click.option("--case", "names", multiple=True, type=click.Choice(list(CASES)), help="These only; may be repeated.")
@click.option("--num-streams", type=click.IntRange(1), default=64, show_default=True)
@click.option("--num-tokens", type=click.IntRange(10, 16000), default=1000, show_default=True, help="Of each stream.")
@click.option("--repeats", type=click.IntRange(0), default=100, show_default=True, help="Of first events; 0: none.")
@json_option
def front(names: tuple[str, ...], num_streams: int, num_tokens: int, repeats: int, json_path: Path | None) -> None:
    """Streams through the server, an engine behind it that answers at once: tokens a second on one core, one event a
    token, and what the server adds to the time to the first event."""
    cores, machine = two_cores(), machine_line()
    os.sched_setaffinity(0, {cores.others})
    groups = by_server([CASES[name] for name in names or CASES])
    rows = [row for cases in groups for row in throughput(cases, cores, num_streams, num_tokens)]
    rows.append(limit(cores, num_streams, num_tokens))
    firsts: list[dict[str, object]] = []
    if repeats:
        timed = [name for name in names or TTFT_CASES if name in TTFT_CASES]
        busy = Background(num_streams - 1, LOAD_TOKENS_PER_SECOND)
        firsts = first_event_rows(cores, timed, busy, repeats)
    click.echo(machine)
    print_table(rows, THROUGHPUT)
    if firsts:
        print_table(firsts, FIRST_EVENT)
    write_json(json_path, {"front": rows, "first_events": firsts})
