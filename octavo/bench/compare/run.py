"""The runs: every engine loaded at once and at rest, then one at a time, in turns."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path

import click
from gguf import GGMLQuantizationType

from octavo.bench.ceilings import Ceilings, measure_ceilings
from octavo.bench.compare.cells import Cell, System, taking_part
from octavo.bench.compare.figures import FLOAT, ModelCost, Weights, floor_of, row
from octavo.bench.compare.models import model_as
from octavo.bench.compare.process import EngineProcess
from octavo.core.errors import ConfigurationError
from octavo.engine_args import EngineArgs
from octavo.loading.gguf_quants import UNPACKERS
from octavo.loading.header import StoredTensor
from octavo.loading.summary import model_summary, open_header
from octavo.models import names
from octavo.models.groups import kv_bytes_per_token

WARM_UP = Cell("warm-up", 1, 8, 2)


@dataclass(frozen=True, slots=True)
class Contestant:
    """A system that is loaded and ready. ``cost``: what its weights cost, for Octavo's ceilings. ``vocab_size``: of the
    model, the same for all."""

    system: System
    process: EngineProcess
    cost: ModelCost
    vocab_size: int

    @property
    def name(self) -> str:
        return self.process.name


def start(
    path: Path, systems: Sequence[System], cells: Sequence[Cell], threads: int, stack: ExitStack
) -> list[Contestant]:
    """Starts and warms up each of ``systems`` on the .gguf file ``path``; ``stack`` ends them. A peer that cannot take
    this model is left out, and says why.

    Raises:
        ConfigurationError: Octavo cannot take it.
    """
    ready = []
    for system in systems:
        try:
            contestant, version = _start(path, system, cells, threads, stack)
        except ConfigurationError as error:
            if system.peer is None:
                raise
            click.echo(f"left out: {error}", err=True)
            continue
        click.echo(f"ready: {contestant.name} ({version})", err=True)
        ready.append(contestant)
    return ready


def _start(path: Path, system: System, cells: Sequence[Cell], threads: int, stack: ExitStack) -> tuple[Contestant, str]:
    model, vocab_size = model_as(path, system.weights), model_summary(path).config.vocab_size
    own = [cell for cell in cells if cell.name in system.cells]
    process = stack.enter_context(system.start(system.name(stored_kind(path))))
    said = process.ask(
        "load",
        model=str(model),
        threads=threads,
        max_sequences=max(cell.num_requests for cell in own),
        max_tokens=max(cell.max_tokens for cell in own),
    )
    process.run(WARM_UP.prompts(vocab_size, random.Random(0)), WARM_UP.output_len)
    return Contestant(system, process, model_cost(path, model, system), vocab_size), said["version"]


def stored_kind(path: Path) -> str:
    """The number format of most matrices: what people call the file."""
    kinds = model_summary(path).kinds
    return max((kind for kind in kinds if kind != "F32"), key=lambda kind: kinds[kind], default="F32")


def model_cost(path: Path, model: Path, system: System) -> ModelCost:
    """``model``: the file or folder that ``system`` loads, made from ``path``."""
    config, is_float = model_summary(path).config, system.group == "float32"
    args = EngineArgs(str(path), dtype="float32" if is_float else "auto")
    tensors = open_header(path if is_float else model).tensors
    head = names.EMBEDDING if config.tie_embeddings else names.HEAD
    body = [name for name in tensors if name not in (names.EMBEDDING, names.HEAD)]
    return ModelCost(
        body=_weights([tensors[name] for name in body], is_float),
        head=_weights([tensors[head]], is_float),
        kv_bytes=kv_bytes_per_token(config, args.kv_dtype_name),
        attention_operations=4 * config.num_layers * config.num_heads * config.head_dim,
    )


def _weights(tensors: Sequence[StoredTensor], is_float: bool) -> Weights:
    """``is_float``: unpacked to fp32 before anything is computed."""
    numbers: Counter[str] = Counter()
    for tensor in tensors:
        numbers[FLOAT if is_float else _multiplied_as(tensor)] += prod(tensor.shape)
    return Weights(4 * numbers.total() if is_float else sum(tensor.num_bytes for tensor in tensors), numbers)


def _multiplied_as(tensor: StoredTensor) -> str:
    unpacker = UNPACKERS.get(GGMLQuantizationType[tensor.kind])
    return FLOAT if unpacker is None else unpacker[0].name


def measure(
    contestants: Sequence[Contestant], cells: Sequence[Cell], repeats: int, threads: int
) -> list[dict[str, object]]:
    """The table's lines, cell by cell. Ctrl-C ends it with those of the cells that are done."""
    rows: list[dict[str, object]] = []
    source = random.Random(0)
    by_system = {contestant.system: contestant for contestant in contestants}
    try:
        for cell in cells:
            taking = [by_system[system] for system in taking_part(cell, by_system)]
            before = measure_ceilings(threads)
            seconds = run_cell(cell, taking, repeats, source)
            ceilings = _mean(before, measure_ceilings(threads))
            click.echo(f"{cell.name}: {ceilings.describe()}", err=True)
            rows += cell_rows(cell, taking, seconds, ceilings)
    except KeyboardInterrupt:
        click.echo("stopped; these cells are whole:", err=True)
    return rows


def run_cell(
    cell: Cell, contestants: Sequence[Contestant], repeats: int, source: random.Random
) -> dict[str, list[float]]:
    """Seconds of each contestant in each repeat: all of them in turns, on the same prompts."""
    seconds: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for repeat in range(repeats if contestants else 0):
        prompts = cell.prompts(contestants[0].vocab_size, source)
        for contestant in _rotated(contestants, repeat):
            took = contestant.process.run(prompts, cell.output_len)
            click.echo(f"{cell.name} {repeat + 1}/{repeats}: {contestant.name} {took:.2f} s", err=True)
            seconds[contestant.name].append(took)
    return seconds


def _rotated(contestants: Sequence[Contestant], repeat: int) -> Iterator[Contestant]:
    """Another one begins in each repeat, so that each follows others and comes at other times."""
    return (contestants[(repeat + place) % len(contestants)] for place in range(len(contestants)))


def cell_rows(
    cell: Cell, contestants: Sequence[Contestant], seconds: Mapping[str, Sequence[float]], ceilings: Ceilings
) -> list[dict[str, object]]:
    """A line for each contestant: peers with their ratios, Octavo with its share of the ceiling."""
    octavos = {contestant.system.group: contestant for contestant in contestants if contestant.system.peer is None}
    rows = []
    for contestant in contestants:
        octavo, own = octavos[contestant.system.group], seconds[contestant.name]
        if contestant is octavo:
            rows.append(row(cell, contestant.name, own, None, floor_of(cell, contestant.cost, ceilings)))
        else:
            rows.append(row(cell, contestant.name, own, seconds[octavo.name], None))
    return rows


def _mean(first: Ceilings, second: Ceilings) -> Ceilings:
    """What the machine could do on average, before a cell and after it."""
    return Ceilings(
        (first.read_bytes_per_second + second.read_bytes_per_second) / 2,
        (first.float_operations_per_second + second.float_operations_per_second) / 2,
        (first.byte_operations_per_second + second.byte_operations_per_second) / 2,
        {
            kind: (products + second.products_per_second[kind]) / 2
            for kind, products in first.products_per_second.items()
        },
    )
