"""``octavo simulate``: a trace through the engine's own scheduler and allocator, under a virtual clock."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from octavo.bench.traces import AZURE_TRACES, azure_path
from octavo.cli.cost_option import cost_model_option, with_calibrated_settings
from octavo.cli.objectives import LATENCY_TITLES, RATE_LINES, Objectives
from octavo.cli.picture import plot_option
from octavo.cli.simulate_figure import figure_names, redraw
from octavo.cli.simulate_picture import draw
from octavo.cli.table import json_option, print_table, write_json, write_text
from octavo.cli.units import ByteSize, Number, TokenCount
from octavo.core.errors import ConfigurationError
from octavo.core.eviction_policies import EVICTION_POLICIES
from octavo.core.kv_types import CacheConfig
from octavo.core.scheduler_types import (
    ADMISSION_QUANTILE,
    POLICY_NAMES,
    PREEMPTION_MODES,
    PolicySettings,
    SchedulerConfig,
)
from octavo.sim.calibration import SETTINGS
from octavo.sim.cost_text import parse_costs
from octavo.sim.figures import PERCENTILES, figures, series
from octavo.sim.recorder import OBJECTIVES, Recorder
from octavo.sim.repeated import repeated
from octavo.sim.replay import LandedStep
from octavo.sim.routers import LEAST_LOADED, ROUTERS
from octavo.sim.simulation import ServerSettings, Simulation
from octavo.sim.split import Split, SplitSimulation
from octavo.sim.traces.request import TracedRequest, asking
from octavo.sim.traces.source import (
    FORMATS,
    SHAREGPT,
    LengthsSource,
    Pace,
    Source,
    detect_format,
    open_source,
)

LINES = {
    "num_requests": "requests",
    "num_completed": "answered whole",
    "num_rejected": "rejected",
    "seconds": "seconds",
    "busy_share": "share of them that steps took",
    "num_steps": "steps",
    **RATE_LINES,
    "prefix_hit_tokens": "prompt tokens cached",
    "prefix_hit_share": "share of them",
    "num_preemptions": "preemptions",
    "num_swaps": "of them swapped out",
    "preempted_share": "share of requests preempted",
    "preempted_tokens": "tokens lost by them",
    "filled_share": "slots filled, mean share",
    "held_share": "blocks held, mean share",
    "running_mean": "running, mean",
    "running_max": "running, most",
    "waiting_mean": "waiting, mean",
    "waiting_max": "waiting, most",
}

TITLES = LATENCY_TITLES | {"queue": "in line"}
"""Of latencies, in milliseconds."""

STEPS_A_LOOK = 64
"""The bar is looked at so often."""


@click.command("simulate")
@click.argument("trace", required=False)
@click.option("--format", "format_", type=click.Choice(FORMATS), help="Of TRACE.  [default: as it looks]")
@click.option("--lenient", is_flag=True, help="Leave out lines that are no requests, and count them.")
@click.option("--limit", type=click.IntRange(1), help="Play so many requests at most.")
@click.option("--speed", type=Number(0, min_open=True), help="Play it so many times as fast.  [default: 1]")
@click.option("--rate", type=Number(0, min_open=True), help="Requests a second, instead of a speed.")
@click.option("--seed", type=int, default=0, show_default=True, help="Where times or lengths are drawn.")
@click.option("--max-tokens", type=TokenCount(), help="What each asks for at most.  [default: as many as it got]")
@cost_model_option
@click.option("--num-blocks", type=click.IntRange(1), default=8192, show_default=True, help="Blocks in the KV cache.")
@click.option("--block-size", type=click.IntRange(1), default=16, show_default=True, help="Tokens in a block.")
@click.option("--max-num-seqs", type=click.IntRange(1), default=256, show_default=True, help="Most sequences at once.")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), default=2048, show_default=True, help="A step.")
@click.option(
    "--max-model-len", type=TokenCount(), help="Longest prompt plus output.  [default: what the memory holds]"
)
@click.option("--max-num-queued-reqs", type=click.IntRange(0), help="Refuse more.  [default: no bound]")
@click.option("--enable-prefix-caching/--no-enable-prefix-caching", default=True, show_default=True)
@click.option("--eviction-policy", type=click.Choice(tuple(EVICTION_POLICIES)), default="lru", show_default=True)
@click.option("--scheduling-policy", type=click.Choice(POLICY_NAMES), default="fcfs", show_default=True)
@click.option("--preemption-mode", type=click.Choice(PREEMPTION_MODES), default="auto", show_default=True)
@click.option("--num-host-blocks", type=click.IntRange(0), default=0, show_default=True, help="Blocks to swap to.")
@click.option(
    "--admission-quantile",
    type=Number(0, 1, max_open=True),
    default=ADMISSION_QUANTILE,
    show_default=True,
    help="How likely what is admitted has room to its end.",
)
@click.option(
    "--goodput", "slos", type=Objectives(OBJECTIVES), help='Of answers in time: "ttft:1000 itl:100", milliseconds.'
)
@click.option("--repeat", type=click.IntRange(1), default=1, show_default=True, help="Play it so many times over.")
@click.option("--replicas", type=click.IntRange(1), default=1, show_default=True, help="Servers of this kind.")
@click.option(
    "--router", type=click.Choice(tuple(ROUTERS)), default=LEAST_LOADED, show_default=True, help="Which gets whom."
)
@click.option(
    "--prefill-replicas", type=click.IntRange(1), help="So many of them compute prompts alone, the others answers."
)
@click.option(
    "--transfer-bandwidth", type=ByteSize(), help="Bytes a second at which each of those sends keys and values: 25GB."
)
@click.option("--kv-bytes-per-token", type=click.IntRange(1), help="Of what it sends (`octavo inspect` says it).")
@click.option(
    "--figure",
    type=click.Choice(figure_names()),
    help="Redraw a figure of the paper on PagedAttention, with the lengths of TRACE or of ShareGPT (docs/paper.md).",
)
@click.option("--figure-seconds", type=Number(0, min_open=True), help="How long requests come in it.  [default: 600]")
@plot_option("it")
@json_option
def simulate(trace: str | None, format_: str | None, **given: Any) -> None:
    """Replay the requests of TRACE through the engine's own scheduler and allocator, with no model.

    TRACE is a file, or azure, azure-code or sharegpt (fetched when it is first asked for, 27 MB).

    Nothing is computed and no clock is read: how long a step takes is what --cost-model says, so the figures are the
    same on every machine. docs/simulator.md says which traces can be read and what each figure means.
    """
    pace = Pace(given["speed"] or 1.0, given["rate"], given["limit"], given["seed"])
    if given["speed"] and given["rate"]:
        raise click.UsageError("--speed and --rate say the same thing; give one of them")
    source = None if trace is None else find_source(trace, format_, lenient=given["lenient"])
    for note in source.notes if source else ():
        click.echo(note, err=True)
    if given["figure"] is not None:
        requests = None if source is None else source.requests(pace)
        picture = redraw(given["figure"], requests, given["limit"], given["figure_seconds"], given["json_path"])
        if given["plot_path"] is not None:
            write_text(given["plot_path"], picture)
        return
    if source is None:
        raise click.UsageError("give a TRACE to replay, or --figure")
    given = with_calibrated_settings(given, SETTINGS)
    simulation = make_simulation(repeated(lambda: source.requests(pace), given["repeat"]), given)
    with _progress(source, simulation.recorder, pace.limit, given["repeat"]) as on_step:
        recorder = simulation.run(on_step)
    if not recorder.num_arrived:
        raise ConfigurationError(f"{trace} has no request; {sum(source.skipped.values())} lines of it were left out")
    report(source, recorder, given["json_path"])
    if given["plot_path"] is not None:
        write_text(given["plot_path"], draw(recorder))


def find_source(trace: str, name: str | None, *, lenient: bool) -> Source:
    """A file, a trace that comes with Octavo, or ShareGPT, whose tokens the built-in model's tokenizer counts.

    Raises:
        ConfigurationError: it is no trace.
    """
    if trace in AZURE_TRACES:
        return open_source(azure_path(trace), "azure")
    if trace == SHAREGPT:
        return LengthsSource(SHAREGPT, _sharegpt_lengths(None))
    name = name or detect_format(Path(trace))
    if name == SHAREGPT:
        return LengthsSource(SHAREGPT, _sharegpt_lengths(Path(trace)))
    return open_source(Path(trace), name, lenient=lenient)


def _sharegpt_lengths(path: Path | None) -> Sequence[tuple[int, int]]:
    from octavo.bench.sharegpt import sharegpt_lengths

    return sharegpt_lengths(file=path)


def make_simulation(requests: Iterator[TracedRequest], given: dict[str, Any]) -> Simulation | SplitSimulation:
    """One server, or several of a kind, or of two."""
    settings, costs, num_replicas = server_settings(given), parse_costs(given["cost_model"]), given["replicas"]
    longest = min(settings.scheduler.max_model_len, settings.cache.num_token_slots)
    requests = asking(requests, given["max_tokens"], longest)
    split = (given["prefill_replicas"], given["transfer_bandwidth"], given["kv_bytes_per_token"])
    if split == (None, None, None):
        router = ROUTERS[given["router"]]()
        return Simulation(requests, settings, costs, given["slos"], num_replicas=num_replicas, router=router)
    if None in split:
        raise click.UsageError("--prefill-replicas, --transfer-bandwidth and --kv-bytes-per-token go together")
    if given["router"] != LEAST_LOADED:
        raise click.UsageError(
            f"--router {given['router']} does not go with --prefill-replicas, where the least loaded is chosen"
        )
    num_prefill, bandwidth, num_bytes = split
    if num_prefill >= num_replicas:
        raise click.UsageError(f"{num_prefill} of {num_replicas} --replicas for prompts leave none for answers")
    kinds = Split(num_prefill, num_replicas - num_prefill, num_bytes, bandwidth)
    return SplitSimulation(requests, settings, costs, kinds, given["slos"])


def server_settings(given: dict[str, Any]) -> ServerSettings:
    """What the flags say of the server."""
    cache = CacheConfig(
        given["num_blocks"],
        given["block_size"],
        enable_prefix_caching=given["enable_prefix_caching"],
        num_host_blocks=given["num_host_blocks"],
        eviction_policy=given["eviction_policy"],
    )
    config = SchedulerConfig(
        max_num_seqs=given["max_num_seqs"],
        max_num_batched_tokens=given["max_num_batched_tokens"],
        max_model_len=given["max_model_len"] or cache.num_token_slots,
        preemption_mode=given["preemption_mode"],
        policy=PolicySettings(given["scheduling_policy"]),
        admission_quantile=given["admission_quantile"],
    )
    return ServerSettings(config, cache, given["max_num_queued_reqs"])


def report(source: Source, recorder: Recorder, json_path: Path | None) -> None:
    """The table, what was left out, and the JSON."""
    row = figures(recorder)
    print_table(
        [{"what": title, "value": row[key]} for key, title in LINES.items()], {"what": source.format, "value": ""}
    )
    click.echo()
    parts = ("mean", *(f"p{percent}" for percent in PERCENTILES), "max")
    latencies = [{"what": title, **{part: row[f"{name}_{part}"] for part in parts}} for name, title in TITLES.items()]
    print_table(latencies, {"what": "milliseconds", **{part: part for part in parts}})
    for reason, count in recorder.rejected.items():
        click.echo(f"rejected: {count} of {recorder.num_arrived} requests: {reason}", err=True)
    for what, count in source.skipped.items():
        click.echo(f"left out: {count} lines of the trace: {what}", err=True)
    skipped = {"skipped_lines": dict(source.skipped)}
    write_json(json_path, {"simulate": [row | skipped], "series": series(recorder)})


@contextmanager
def _progress(source: Source, recorder: Recorder, limit: int | None, times: int) -> Iterator[Any]:
    """A bar with the time left, by how much of the trace has been played."""
    layout = "{desc} {percentage:3.0f}% |{bar}| {elapsed} gone, {remaining} left{postfix}"
    with tqdm(total=1.0, desc="simulating", bar_format=layout, disable=not sys.stderr.isatty(), leave=False) as bar:
        num_before, last = 0, 0.0

        def on_step(step: LandedStep) -> None:
            nonlocal num_before, last
            if step.plan.step_id % STEPS_A_LOOK == 0:
                num_before, last = num_before + (source.share_read < last), source.share_read
                done = recorder.num_arrived / (limit * times) if limit else (num_before + last) / times
                bar.set_postfix_str(f"{step.now:,.0f} s simulated", refresh=False)
                bar.update(max(0.0, done - bar.n))

        yield on_step
