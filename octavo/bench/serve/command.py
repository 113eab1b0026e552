"""The command: what is sent where, then a table with a column a rate."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from octavo.bench.serve.exchange import Target, split_url
from octavo.bench.serve.figures import OBJECTIVES, figures
from octavo.bench.serve.load import Run, send_all
from octavo.bench.serve.options import Rates, Span
from octavo.bench.serve.plot import draw
from octavo.bench.serve.server import counted, first_model, read_counters
from octavo.bench.serve.workload import ARRIVALS, LENGTHS, POISSON, SYNTHETIC, Planned, Workload
from octavo.cli.machine import machine_line
from octavo.cli.objectives import LATENCY_TITLES, RATE_LINES, Objectives
from octavo.cli.picture import plot_option
from octavo.cli.table import json_option, print_table, write_json, write_text
from octavo.core.errors import ConfigurationError

LINES = {
    "num_requests": "requests",
    "num_completed": "answered whole",
    "num_rejected": "rejected (429)",
    "num_errors": "other errors",
    "seconds": "seconds",
    **RATE_LINES,
    **{
        f"{name}_{part}": f"{title} {part}, ms"
        for name, title in LATENCY_TITLES.items()
        for part in ("mean", "p50", "p90", "p99")
    },
    "prefix_hit_percent": "prefix cache hits, %",
    "num_preemptions": "preemptions",
    "send_lag_p99": "sent late p99, ms",
    "client_cpu_percent": "CPU of this client, %",
}
"""Key of a figure -> its line in the table; the keys of the objectives are those of ``--goodput``."""

TARGET_FIELDS = ("model", "endpoint", "api_key", "ignore_eos", "timeout")

WARM_UP = Planned(0.0, [1] * 8, 2)
WARM_UP_TEXT = Planned(0.0, "the of and to in is that it", 2)


def measure(
    target: Target,
    workload: Workload,
    rates: Sequence[float],
    slos: Mapping[str, float],
    max_concurrency: int | None = None,
) -> tuple[list[dict[str, object]], dict[float, Run]]:
    """A row of figures for each rate, and the runs behind them; one rate after another."""
    rows: list[dict[str, object]] = []
    runs: dict[float, Run] = {}
    for index, rate in enumerate(rates):
        plan = workload.plan(rate, target.endpoint, index)
        before = read_counters(target)
        with tqdm(total=len(plan), desc=f"{rate:g} requests/s", unit="answer", disable=None) as bar:
            runs[rate] = send_all(target, plan, max_concurrency, bar.update)
        rows.append(figures(rate, runs[rate], slos) | counted(before, read_counters(target)))
    return rows, runs


def check_it_answers(target: Target) -> None:
    """One small request, which also warms it up.

    Raises:
        ConfigurationError: it gets no whole answer; with the server's words.
    """
    (answer,) = send_all(target, [WARM_UP_TEXT if target.endpoint == "chat" else WARM_UP]).answers
    if answer.error is not None:
        raise ConfigurationError(
            f"a first request to {target.host}:{target.port} failed ({answer.error}): {answer.message.strip()[:300]}"
        )


def transposed(rows: Sequence[Mapping[str, object]]) -> tuple[list[dict[str, object]], dict[str, str]]:
    """A line a figure and a column a rate, with the columns' headings; lines of which nothing is known are left out."""
    rates = [row["request_rate"] for row in rows]
    names = [f"{rate:g} requests/s" if isinstance(rate, float | int) else f"{rate} requests/s" for rate in rates]
    lines: list[dict[str, object]] = []
    for key, title in LINES.items():
        if any(row[key] is not None for row in rows):
            lines.append({"what": title} | {name: row[key] for name, row in zip(names, rows, strict=True)})
    return lines, {"what": ""} | {name: name for name in names}


def _show_errors(runs: Mapping[float, Run]) -> None:
    """One example of each kind, to standard error."""
    examples = {answer.error: answer.message for run in runs.values() for answer in run.answers if answer.error}
    for kind, message in examples.items():
        click.echo(f"{kind}: {message.strip()[:300]}", file=sys.stderr)


@click.command("serve")
@click.option("--base-url", default="http://127.0.0.1:8000", show_default=True, help="Any OpenAI-compatible server.")
@click.option("--model", help="Name to ask for.  [default: the first that the server lists]")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Also read from OPENAI_API_KEY.")
@click.option("--endpoint", type=click.Choice(["completions", "chat"]), default="completions", show_default=True)
@click.option(
    "--request-rate",
    "--request-rates",
    "rates",
    type=Rates(),
    default="inf",
    show_default=True,
    help="Requests a second, or several rates to measure one after another: 1,2,4. inf: all of them at once.",
)
@click.option(
    "--arrivals",
    type=click.Choice(ARRIVALS),
    default=POISSON,
    show_default=True,
    help="When requests are due: drawn, or as in a trace of Azure at another speed.",
)
@click.option(
    "--burstiness",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Of poisson: below 1 they come in bursts, above 1 evenly.",
)
@click.option("--num-prompts", type=click.IntRange(1), default=100, show_default=True, help="At each rate.")
@click.option(
    "--max-concurrency",
    type=click.IntRange(1),
    help="Most requests that are open; others wait in this client, and that counts as latency.  [default: no bound]",
)
@click.option(
    "--lengths",
    type=click.Choice(LENGTHS),
    default=SYNTHETIC,
    show_default=True,
    help="Of prompts and answers, in tokens.",
)
@click.option(
    "--input-len", type=Span(), default="128", show_default=True, help="Prompts of synthetic lengths: 128, or 64-256."
)
@click.option("--output-len", type=Span(), default="128", show_default=True, help="Answers of synthetic lengths.")
@click.option(
    "--divisor", type=click.IntRange(1), default=1, show_default=True, help="The lengths of a trace, over this."
)
@click.option(
    "--shared-prefix-len",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Tokens that all prompts begin with, before their own.",
)
@click.option(
    "--vocab-size",
    type=click.IntRange(2),
    default=30_000,
    show_default=True,
    help="Token ids of prompts are below this: what the model has, or less.",
)
@click.option(
    "--goodput",
    "--slo",
    "objectives",
    type=Objectives(OBJECTIVES),
    multiple=True,
    help="Milliseconds that count as in time: ttft:500, itl:100, tpot:50, e2el:5000. Several times, or with spaces.",
)
@click.option(
    "--ignore-eos/--no-ignore-eos",
    default=True,
    show_default=True,
    help="Ask for answers of their full length, by a field that not all servers know.",
)
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), default=600.0, show_default=True, help="Seconds an answer."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Draws arrivals, lengths and prompts.")
@plot_option("the latencies")
@json_option
def serve_command(
    base_url: str,
    rates: tuple[float, ...],
    max_concurrency: int | None,
    objectives: tuple[dict[str, float], ...],
    plot_path: Path | None,
    json_path: Path | None,
    **values: Any,
) -> None:
    """Send requests to a running server as users would, and show latencies, throughput and goodput.

    Requests leave when they are due, whatever has become of those before (an open loop), and every latency counts from
    then. Prompts are random: token ids for completions, words of about one token each for chats. The same seed sends
    the same prompts, which the server may have in its cache the second time.
    """
    target = Target(*split_url(base_url), **{name: values.pop(name) for name in TARGET_FIELDS})
    target = target if target.model else replace(target, model=first_model(target))
    workload = Workload(**values)
    slos = {name: most for given in objectives for name, most in given.items()}
    check_it_answers(target)
    rows, runs = measure(target, workload, rates, slos, max_concurrency)
    click.echo(machine_line())
    print_table(*transposed(rows))
    _show_errors(runs)
    write_json(json_path, {"serve": rows})
    if plot_path is not None:
        write_text(plot_path, draw(runs, rows))
