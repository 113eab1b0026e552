"""The paper's figures as rows of what was simulated, with what was published beside it. Each is made one row at a time:
they take a while."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from octavo.sim.paper.experiment import Experiment, Load, poisson, sustained_rate
from octavo.sim.paper.machines import MAX_MODEL_LEN, OPT_13B, OPT_66B, OPT_175B, PaperModel
from octavo.sim.paper.published import Published, published_columns
from octavo.sim.paper.systems import (
    ALLOCATOR_ALONE,
    MAXIMUM,
    ORACLE,
    PAGED,
    POWER_OF_TWO,
    STATIC,
    SYSTEMS,
    System,
)
from octavo.sim.traces.request import TracedRequest

Row = dict[str, object]

LATENCY = 0.25
"""Seconds a token, at which systems are compared. Rates depend on it, their ratios hardly (docs/paper.md)."""

BATCHED_RATE = 2.0
"""Requests a second, in the paper's Figure 13a."""

PUBLISHED_FILLED = {
    MAXIMUM: Published(20.4),
    POWER_OF_TWO: Published(26.8),
    ORACLE: Published(38.2),
    ALLOCATOR_ALONE: Published(96.3),
    PAGED: Published(96.3),
}
"""Figure 2: per cent of the KV memory that holds tokens."""

PUBLISHED_BATCHED = {
    MAXIMUM: Published(7.0),
    POWER_OF_TWO: Published(9.81),
    ORACLE: Published(13.62),
    ALLOCATOR_ALONE: Published(30.42),
    PAGED: Published(30.42),
}
"""Figure 13a: sequences at once."""

PUBLISHED_RATES = {STATIC: Published(22, is_most=True), MAXIMUM: Published(2.7, 8), ORACLE: Published(1.7, 2.7)}
"""Section 6.2: how many times the rate of each the paged system sustains."""

PREFIXES = {80: Published(1.67), 341: Published(3.58)}
"""Tokens of a shared prefix, and how many times the all-knowing reservation's rate was published (Figure 16)."""

PREFIX_NAME = 1

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def waste(load: Load) -> Iterator[Row]:
    """Figure 2: what the KV memory of OPT-13B holds while requests wait for it. They are all there from the start."""
    memory = OPT_13B.memory()
    for system in SYSTEMS:
        experiment = Experiment(system, memory, OPT_13B.costs, watches=True)
        experiment.run([request._replace(seconds=0.0) for request in load.lengths])
        assert experiment.watch is not None
        filled, held = experiment.watch.filled.value, experiment.watch.held.value
        yield {
            "system": system.name,
            "filled": _percent(filled),
            **published_columns(PUBLISHED_FILLED.get(system)),
            "reserved": _percent(None if filled is None or held is None else held - filled),
            "outside": _percent(None if held is None else 1 - held),
            "filled_of_held": _percent(experiment.watch.filled_of_held.value),
            "running": experiment.watch.running.value,
        }


def batched(load: Load) -> Iterator[Row]:
    """Figure 13a: sequences at once with OPT-13B, at two requests a second and where all are there from the start."""
    memory = OPT_13B.memory()
    for system in SYSTEMS:
        paced = Experiment(system, memory, OPT_13B.costs, watches=True)
        paced.run(poisson(load.lengths, BATCHED_RATE, load.seconds))
        full = Experiment(system, memory, OPT_13B.costs, watches=True)
        full.run([request._replace(seconds=0.0) for request in load.lengths])
        assert paced.watch is not None
        assert full.watch is not None
        yield {
            "system": system.name,
            "running": paced.watch.running.value,
            **published_columns(PUBLISHED_BATCHED.get(system)),
            "running_full": full.watch.running.value,
            "latency": paced.normalized_latency,
            "preemptions": paced.occupancy.num_preemptions,
        }


def rate(load: Load, models: Sequence[PaperModel] = (OPT_13B, OPT_66B, OPT_175B)) -> Iterator[Row]:
    """Figure 12: the rate that each system sustains, and how many times that of each the engine's own is."""
    for model in models:
        systems = (PAGED, STATIC, MAXIMUM, POWER_OF_TWO, ORACLE)
        yield from _rates(model, systems, PUBLISHED_RATES, load)


def _rates(
    model: PaperModel, systems: Sequence[System], published: dict[System, Published], load: Load
) -> Iterator[Row]:
    best: float | None = None
    for system in systems:
        found = sustained_rate(system, model.memory(), model.costs, load, LATENCY)
        best = found if best is None else best
        yield {
            "model": model.name,
            "system": system.name,
            "rate": found,
            "times": best / found if found else None,
            **published_columns(published.get(system)),
        }


def prefix(load: Load) -> Iterator[Row]:
    """Figure 16: one prefix before all prompts; the engine's own, which shares it, against the all-knowing
    reservation."""
    for num_tokens, times in PREFIXES.items():
        lengths = with_prefix(load.lengths, num_tokens)
        for row in _rates(OPT_13B, (PAGED, ORACLE), {ORACLE: times}, Load(lengths, load.seconds)):
            yield {"prefix": num_tokens, **row}


def with_prefix(lengths: Sequence[TracedRequest], num_tokens: int) -> list[TracedRequest]:
    """Those that still fit with so many tokens before their prompts, the same for all."""
    return [
        request._replace(prompt=request.prompt + num_tokens, blocks=(PREFIX_NAME,) * num_tokens, block_size=1)
        for request in lengths
        if request.prompt + num_tokens + request.output <= MAX_MODEL_LEN
    ]


def blocks(load: Load) -> Iterator[Row]:
    """Section 7.2: block sizes. Steps cost the same whatever the size, so this is what memory alone has to say."""
    for size in BLOCK_SIZES:
        experiment = Experiment(PAGED, OPT_13B.memory(size), OPT_13B.costs, watches=True)
        experiment.run([request._replace(seconds=0.0) for request in load.lengths])
        assert experiment.watch is not None
        yield {
            "block_size": size,
            "filled": _percent(experiment.watch.filled.value),
            "filled_of_held": _percent(experiment.watch.filled_of_held.value),
            "running": experiment.watch.running.value,
            "latency": experiment.normalized_latency,
        }


class Figure(NamedTuple):
    """``columns``: key of a row -> heading. ``names``: keys that name a row; ``value``: of what is drawn."""

    title: str
    rows: Callable[[Load], Iterator[Row]]
    columns: dict[str, str]
    names: tuple[str, ...]
    value: str


FIGURES = {
    "waste": Figure(
        "KV memory, % of all slots",
        waste,
        {
            "system": "OPT-13B, all at once",
            "filled": "slots filled, %",
            "published": "published, %",
            "reserved": "held, not filled, %",
            "outside": "held by nobody, %",
            "filled_of_held": "filled of held, %",
            "running": "sequences",
        },
        ("system",),
        "filled",
    ),
    "batched": Figure(
        "Sequences at once",
        batched,
        {
            "system": "OPT-13B",
            "running": "sequences at 2 requests/s",
            "published": "published",
            "running_full": "sequences, all at once",
            "latency": "seconds a token",
            "preemptions": "preemptions",
        },
        ("system",),
        "running",
    ),
    "rate": Figure(
        "So many times the rate of each, at 0.25 seconds a token",
        rate,
        {
            "model": "model",
            "system": "system",
            "rate": "requests/s",
            "times": "Octavo is so many times that",
            "published": "published",
        },
        ("model", "system"),
        "times",
    ),
    "prefix": Figure(
        "So many times the rate, by the length of a shared prefix",
        prefix,
        {
            "prefix": "shared prefix",
            "system": "system",
            "rate": "requests/s",
            "times": "Octavo is so many times that",
            "published": "published",
        },
        ("prefix", "system"),
        "times",
    ),
    "blocks": Figure(
        "Filled of held, %",
        blocks,
        {
            "block_size": "tokens in a block",
            "filled": "slots filled, %",
            "filled_of_held": "filled of held, %",
            "running": "sequences",
            "latency": "seconds a token",
        },
        ("block_size",),
        "filled_of_held",
    ),
}


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)
