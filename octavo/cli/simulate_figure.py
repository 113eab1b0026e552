"""``octavo simulate --figure NAME``: a figure of the paper on PagedAttention, redone."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from octavo.cli.picture import Bar, draw_bars
from octavo.cli.table import print_table, write_json
from octavo.core.errors import ConfigurationError
from octavo.sim.paper.experiment import Load
from octavo.sim.paper.figures import FIGURES, Figure
from octavo.sim.paper.machines import MAX_MODEL_LEN, OPT_13B
from octavo.sim.traces.request import TracedRequest

NUM_REQUESTS = 1000
SECONDS = 600.0


def _sharing(load: Load) -> Iterator[dict[str, object]]:
    """The short prompts are always those of ShareGPT: a trace may have none."""
    from octavo.bench.memory import sharing_rows
    from octavo.bench.sharegpt import draw_sharegpt
    from octavo.bench.traces import Lengths

    lengths = [Lengths(each.prompt, each.output) for each in load.lengths]
    short = draw_sharegpt(min(len(lengths), NUM_REQUESTS), seed=0, short=True)
    return sharing_rows(lengths, short, OPT_13B.memory(), seed=0)


SHARING = Figure(
    "Blocks saved, %",
    _sharing,
    {"what": "OPT-13B, all at once", "saved_percent": "blocks saved, %", "published": "published, %"},
    ("what",),
    "saved_percent",
)
"""Section 6.3; measured by what ``octavo bench memory`` has for it."""

ALL_FIGURES: Mapping[str, Figure] = {**FIGURES, "sharing": SHARING}


def redraw(
    name: str, trace: Iterable[TracedRequest] | None, limit: int | None, seconds: float | None, json_path: Path | None
) -> str:
    """Print the rows of a figure, write them, and return its picture. ``trace``: whose lengths are used; None: those of
    ShareGPT, which is fetched when it is first needed."""
    figure, load = ALL_FIGURES[name], Load(lengths_of(trace, limit or NUM_REQUESTS), seconds or SECONDS)
    rows = list(_with_progress(name, figure.rows(load)))
    print_table(rows, figure.columns)
    write_json(json_path, {name: rows})
    return draw_bars(figure.title, [_bar(figure, row) for row in rows])


def lengths_of(trace: Iterable[TracedRequest] | None, limit: int) -> list[TracedRequest]:
    """So many that the paper's models can have.

    Raises:
        ConfigurationError: there is none.
    """
    if trace is None:
        from octavo.bench.sharegpt import draw_sharegpt

        return [TracedRequest(0.0, *lengths) for lengths in draw_sharegpt(limit, seed=0)]
    fit = (TracedRequest(0.0, each.prompt, each.output) for each in trace if each.prompt + each.output <= MAX_MODEL_LEN)
    lengths = list(islice(fit, limit))
    if not lengths:
        raise ConfigurationError(f"the trace has no request of at most {MAX_MODEL_LEN} tokens, the models' context")
    return lengths


def _bar(figure: Figure, row: Mapping[str, object]) -> Bar:
    value, published = row.get(figure.value), row.get("published_range")
    return Bar(
        ", ".join(str(row[name]) for name in figure.names),
        value if isinstance(value, int | float) else None,
        (published[0], published[1]) if isinstance(published, list) else None,
    )


def _with_progress(name: str, rows: Iterable[dict[str, object]]) -> Iterator[dict[str, object]]:
    with tqdm(desc=f"figure {name}", unit=" rows", disable=not sys.stderr.isatty(), leave=False) as bar:
        for row in rows:
            bar.update()
            yield row


def figure_names() -> Sequence[str]:
    return tuple(ALL_FIGURES)
