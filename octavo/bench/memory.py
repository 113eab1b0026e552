"""``octavo bench memory``: how much of the KV memory holds tokens, paged and contiguous, and what sharing saves.

All systems get the same memory, the same budgets and the same requests, all at once. None runs a model: what the
memory holds follows from the lengths alone, so the figures are the same on every machine.

The paper that stands beside the figures is "Efficient Memory Management for Large Language Model Serving with
PagedAttention" (Kwon et al., SOSP 2023): Figure 2 (slots filled), Figure 13a (sequences at once, ShareGPT at 2 requests
a second) and section 6.3 (blocks saved; it gives ranges over n = 2, 4, 6 and over as many beams, and Alpaca for the
short prompts).
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from octavo.bench.contiguous_reserve import ContiguousReserve
from octavo.bench.memory_system import System, measure
from octavo.bench.paged import Paged
from octavo.bench.sharing import Beams, Mode, ParallelSampling, SharedPrefix, measure_sharing
from octavo.bench.traces import Lengths, draw_lengths
from octavo.cli.machine import machine_line
from octavo.cli.table import json_option, print_table, write_json
from octavo.core.scheduler_types import ADMISSION_QUANTILE
from octavo.sim.baselines.allocators import Buddy, FirstFit
from octavo.sim.baselines.memory import MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, Memory
from octavo.sim.baselines.reservation import Reservation, reserve_exactly, reserve_maximum, reserve_power_of_two
from octavo.sim.paper.published import Published, published_columns

AZURE_NUM_REQUESTS = 200
AZURE_NUM_BLOCKS = 3000
"""48,000 tokens, 2.1 GiB for SmolLM2-135M in fp32: some 35 sequences of the trace, as on one small machine."""

SHAREGPT_NUM_REQUESTS = 500
SHAREGPT_NUM_BLOCKS = 983
"""15,728 tokens: the paper's 12 GB for a model of 13 billion parameters at 800 KB a token (its Table 1)."""
MAX_MODEL_LEN = 2048
"""The paper's models' context, and the longest that the ShareGPT filter lets through."""

BEAMS_STRIDE = 4
"""Beams are measured on every fourth request: each step decides anew who shares with whom, which takes its time."""

AZURE_COLUMNS = {
    "system": "Azure conversations",
    "filled_share": "slots filled",
    "filled_share_once_full": "filled, once full",
    "held_share": "held, once full",
    "resident": "sequences",
    "num_preemptions": "preemptions",
    "num_steps": "steps",
}
SHAREGPT_COLUMNS = {
    "what": "ShareGPT",
    "filled_percent": "slots filled, %",
    "paper_filled_percent": "paper, %",
    "resident": "sequences",
    "paper_resident": "paper",
    "saved_percent": "blocks saved, %",
    "published": "paper, %",
}


def azure_rows(num_requests: int, memory: Memory, seed: int) -> list[dict[str, object]]:
    """Paged memory and memory reserved to the longest request of the run, which favours the latter: a server that does
    not know its requests reserves the model's whole context."""
    lengths = draw_lengths(num_requests, seed)
    reservation = reserve_maximum(max(request.total for request in lengths))
    systems: list[System] = [
        *paged_systems(memory, lengths, seed),
        ContiguousReserve(memory, lengths, reservation),
    ]
    return [asdict(measure(system, memory)) for system in systems]


def paged_systems(memory: Memory, lengths: Sequence[Lengths], seed: int) -> list[Paged]:
    """As the engine is by default, and the allocator alone, where whoever fits at the moment comes in."""
    return [Paged(memory, lengths, random.Random(seed), quantile) for quantile in (ADMISSION_QUANTILE, 0.0)]


def sharegpt_rows(num_requests: int, memory: Memory, seed: int) -> Iterator[dict[str, object]]:
    """Every way to give memory to the same requests, then what sharing saves."""
    from octavo.bench.sharegpt import draw_sharegpt

    lengths = draw_sharegpt(num_requests, seed)
    short = draw_sharegpt(num_requests, seed, short=True)
    yield from system_rows(lengths, memory, seed)
    yield from sharing_rows(lengths, short, memory, seed)


def system_rows(lengths: Sequence[Lengths], memory: Memory, seed: int) -> Iterator[dict[str, object]]:
    """Contiguous memory in the paper's three ways and one more, and paged memory."""
    reservations: list[tuple[Reservation, float | None, float | None]] = [
        (reserve_maximum(MAX_MODEL_LEN), 20.4, 7.0),
        (reserve_power_of_two(MAX_MODEL_LEN), 26.8, 9.81),
        (reserve_exactly(Buddy), 38.2, 13.62),
        (reserve_exactly(FirstFit), None, None),
    ]
    systems: list[tuple[System, float | None, float | None]] = [
        (ContiguousReserve(memory, lengths, reservation), filled, resident)
        for reservation, filled, resident in reservations
    ]
    systems += ((system, 96.3, 30.42) for system in paged_systems(memory, lengths, seed))
    for system, paper_filled, paper_resident in systems:
        figures = measure(system, memory)
        yield {
            "what": system.name,
            **asdict(figures),
            "filled_percent": _percent(figures.filled_share),
            "paper_filled_percent": paper_filled,
            "paper_resident": paper_resident,
        }


def sharing_rows(
    lengths: Sequence[Lengths], short: Sequence[Lengths], memory: Memory, seed: int
) -> Iterator[dict[str, object]]:
    """Blocks saved by sharing on ``lengths`` and, where the paper has it, on ``short`` prompts."""
    parallel, beams = [ParallelSampling(n) for n in (2, 4, 6)], [Beams(width) for width in (2, 4, 6)]
    cases: list[tuple[str, Mode, Sequence[Lengths], Published | None]] = [
        *(("", mode, lengths, Published(16.2, 30.5)) for mode in parallel),
        *((", short prompts", mode, short, Published(6.1, 9.8)) for mode in parallel),
        *(("", mode, lengths[::BEAMS_STRIDE], Published(44.3, 66.3)) for mode in beams),
        *((", short prompts", mode, short[::BEAMS_STRIDE], Published(37.6, 55.2)) for mode in beams),
        *(("", SharedPrefix(num_tokens), lengths, None) for num_tokens in (80, 341)),
    ]
    for note, mode, chosen, published in cases:
        figures = measure_sharing(chosen, mode, memory, seed)
        yield {
            "what": mode.name + note,
            **asdict(figures),
            "saved_percent": _percent(figures.saved_share),
            **published_columns(published),
        }


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)


@click.command("memory")
@click.option(
    "--lengths",
    "traces",
    type=click.Choice(["sharegpt", "azure"]),
    multiple=True,
    default=("sharegpt", "azure"),
    show_default=True,
    help="Whose requests; may be given twice. ShareGPT is fetched when it is first asked for (27 MB).",
)
@click.option(
    "--num-requests",
    type=click.IntRange(1),
    help=f"All arrive at once.  [default: {SHAREGPT_NUM_REQUESTS} of ShareGPT, {AZURE_NUM_REQUESTS} of Azure]",
)
@click.option(
    "--num-blocks",
    type=click.IntRange(1),
    help="Blocks of 16 tokens in the KV memory.  "
    f"[default: {SHAREGPT_NUM_BLOCKS} for ShareGPT, {AZURE_NUM_BLOCKS} for Azure]",
)
@click.option(
    "--max-num-batched-tokens",
    type=click.IntRange(MAX_NUM_SEQS),
    default=MAX_NUM_BATCHED_TOKENS,
    show_default=True,
    help="Most tokens in one step.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Draws the requests.")
@json_option
def memory_command(
    traces: tuple[str, ...],
    num_requests: int | None,
    num_blocks: int | None,
    max_num_batched_tokens: int,
    seed: int,
    json_path: Path | None,
) -> None:
    """Compare paged KV memory with contiguous memory on real lengths, and show what sharing saves.

    Slots filled are of all slots, as a mean over the steps in which requests wait; "once full" leaves out the first of
    them, in which the empty memory fills as fast as the token budget allows. Sequences are those in memory at once,
    from then on. Blocks saved are of those that the same sequences would take if none were shared. The paper is the one
    on PagedAttention (SOSP 2023); it ran a model with a context of 2,048 tokens, as is reserved here.
    """
    figures: dict[str, object] = {}
    click.echo(machine_line())
    if "sharegpt" in traces:
        memory = Memory(num_blocks or SHAREGPT_NUM_BLOCKS, max_num_batched_tokens=max_num_batched_tokens)
        rows = list(sharegpt_rows(num_requests or SHAREGPT_NUM_REQUESTS, memory, seed))
        print_table(rows, SHAREGPT_COLUMNS)
        figures["memory_sharegpt"] = rows
    if "azure" in traces:
        memory = Memory(num_blocks or AZURE_NUM_BLOCKS, max_num_batched_tokens=max_num_batched_tokens)
        rows = azure_rows(num_requests or AZURE_NUM_REQUESTS, memory, seed)
        print_table(rows, AZURE_COLUMNS)
        figures["memory"] = rows
    write_json(json_path, figures)
