"""What the simulator predicts of workloads that are also really run: throughput, median TTFT and median ITL.

    python -m bench.predicted [--model NAME] [--repeats 5] [--load NAME]... [--json FILE]

A server of this machine is loaded over HTTP as ``octavo bench serve`` does it. In between, the machine is calibrated as
``octavo calibrate`` does it, a part before each load and a round in each repeat: on a shared machine, what was true a
minute ago need not be so now. Then the same requests are simulated. Drafts are off, since the simulator has none; the
prefix cache is on in both. Every repeat sends the same lengths at the same times with new tokens.

Shown are medians over the repeats. A prediction holds if it is within the bound of the measured figure, or within the
measured spread, the largest distance of a repeat from the median, if that is larger.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import click
from tqdm import tqdm

from octavo.bench.calibrate.front import FrontRuns
from octavo.bench.calibrate.predict import predict, settings_like
from octavo.bench.calibrate.sweep import PlanWatch, Sweep
from octavo.bench.report import report
from octavo.bench.serve.command import check_it_answers
from octavo.bench.serve.exchange import Target, split_url
from octavo.bench.serve.figures import figures
from octavo.bench.serve.load import send_all
from octavo.bench.serve.server import first_model
from octavo.bench.serve.workload import LengthRange, Planned, Workload
from octavo.bench.server_process import running_server
from octavo.build import build_engine
from octavo.cli.calibrate import serve_arguments
from octavo.cli.table import json_option
from octavo.engine_args import EngineArgs
from octavo.sim.costs import CostModel, LinearCosts
from octavo.sim.fit import fit
from octavo.sim.simulation import ServerSettings

NUM_BLOCKS = 4096
"""Of the server and of the engine that is calibrated beside it: none of the workloads fills them."""

BOUNDS = {"output_tokens_per_second": 0.10, "ttft_p50": 0.15, "itl_p50": 0.15}
TITLES = {"output_tokens_per_second": "new tokens/s", "ttft_p50": "TTFT p50, ms", "itl_p50": "ITL p50, ms"}


@dataclass(frozen=True, slots=True)
class Load:
    """``rate``: requests a second; inf: all at once."""

    workload: Workload
    rate: float


def _load(count: int, rate: float, prompts: tuple[int, int], answers: tuple[int, int], prefix: int = 0) -> Load:
    workload = Workload(
        count, input_len=LengthRange(*prompts), output_len=LengthRange(*answers), shared_prefix_len=prefix
    )
    return Load(workload, rate)


LOADS: Mapping[str, Load] = {
    "short prompts, low rate": _load(16, 2, (16, 64), (16, 64)),
    "short prompts, high rate": _load(48, 8, (16, 64), (16, 64)),
    "long prompts, low rate": _load(6, 0.4, (512, 1024), (64, 96)),
    "long prompts, high rate": _load(14, 2, (256, 512), (32, 64)),
    "long answers": _load(12, 2, (16, 32), (128, 192)),
    "burst": _load(24, math.inf, (64, 256), (64, 64)),
    "shared prefix": _load(24, 3, (16, 64), (32, 32), prefix=512),
    "conversations, an eighth": Load(Workload(24, lengths="azure", divisor=8), 3),
}

COLUMNS = {
    "load": "load",
    "figure": "figure",
    "measured": "measured",
    "predicted": "predicted",
    "error_percent": "error, %",
    "bound_percent": "bound, %",
    "spread_percent": "spread, %",
    "holds": "holds",
}

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Bench:
    """A server that runs, and an engine of the same settings."""

    target: Target
    settings: ServerSettings
    sweep: Sweep
    front: FrontRuns

    def calibrate(self, part: int, num_parts: int) -> None:
        """Play one part of a round."""
        for number in range(part, len(self.sweep.scenes), num_parts):
            self.sweep.play(number)
        for number in range(part, self.front.num_runs, num_parts):
            self.front.play(number)

    def costs(self) -> LinearCosts:
        costs = fit(self.sweep.cells())
        return replace(costs, front=self.front.front(costs))

    def measured(self, plan: Sequence[Planned], rate: float) -> Figures:
        return _chosen(figures(rate, send_all(self.target, plan), {}))

    def predicted(self, plan: Sequence[Planned], costs: CostModel) -> Figures:
        return _chosen(predict(plan, costs, self.settings))


def _chosen(row: Mapping[str, object]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in BOUNDS:
        value = row[name]
        assert isinstance(value, float), f"every load has a {name}"
        found[name] = value
    return found


def measure(bench: Bench, loads: Mapping[str, Load], repeats: int) -> tuple[LinearCosts, list[dict[str, object]]]:
    """What the calibration found, and a row for each load and figure."""
    sent: dict[str, list[tuple[Sequence[Planned], Figures]]] = {name: [] for name in loads}
    with tqdm(total=repeats * len(loads), desc="loads", unit="", disable=None, leave=False) as bar:
        for repeat in range(repeats):
            for number, (name, load) in enumerate(loads.items()):
                bench.calibrate((number + repeat) % len(loads), len(loads))
                plan = load.workload.plan(load.rate, "completions", repeat * len(loads) + number)
                sent[name].append((plan, bench.measured(plan, load.rate)))
                bar.update()
    costs = bench.costs()
    pairs = {name: [(found, bench.predicted(plan, costs)) for plan, found in runs] for name, runs in sent.items()}
    return costs, [row(name, figure, pairs[name]) for name in loads for figure in BOUNDS]


def row(load: str, figure: str, pairs: Sequence[tuple[Figures, Figures]]) -> dict[str, object]:
    """``pairs``: measured and predicted, of each repeat."""
    measured, predicted = ([each[figure] for each in column] for column in zip(*pairs, strict=True))
    middle = median(measured)
    error, spread = median(predicted) / middle - 1, max(abs(value / middle - 1) for value in measured)
    return {
        "load": load,
        "figure": TITLES[figure],
        "measured": middle,
        "predicted": median(predicted),
        "error_percent": 100 * error,
        "bound_percent": 100 * BOUNDS[figure],
        "spread_percent": 100 * spread,
        "holds": "yes" if abs(error) <= max(BOUNDS[figure], spread) else "no",
        "measured_of_repeats": measured,
        "predicted_of_repeats": predicted,
    }


@click.command()
@click.option("--model", default="smollm2-135m", show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Medians are shown.")
@click.option(
    "--load", "names", type=click.Choice(tuple(LOADS)), multiple=True, help="May be given often.  [default: all]"
)
@json_option
def main(model: str, repeats: int, names: tuple[str, ...], json_path: Path | None) -> None:
    """Measure workloads and predict them, in turns."""
    chosen = {name: LOADS[name] for name in names or LOADS}
    args, watch = EngineArgs(model, num_blocks=NUM_BLOCKS, speculation="off"), PlanWatch()
    engine, source = build_engine(args, timed=watch), random.Random(0)
    limits = engine.limits
    settings = settings_like(args, limits)
    with running_server(serve_arguments(args)) as port:
        target = Target(*split_url(f"http://127.0.0.1:{port}"), None)
        target = replace(target, model=first_model(target))
        check_it_answers(target)
        front = FrontRuns(target, settings, limits.vocab_size, source)
        costs, rows = measure(Bench(target, settings, Sweep(engine, watch, source), front), chosen, repeats)
    report("predicted", rows, COLUMNS, json_path)
    click.echo(f"with {costs}")
    num_holding = sum(each["holds"] == "yes" for each in rows)
    click.echo(f"{num_holding} of {len(rows)} predictions hold")


if __name__ == "__main__":
    main()
