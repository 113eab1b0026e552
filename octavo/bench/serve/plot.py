"""The runs of a sweep as a picture (SVG): how latencies are distributed at each rate, and what was served of it."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from octavo.bench.serve.exchange import Answer
from octavo.bench.serve.figures import e2el, gaps, tpot, ttft
from octavo.bench.serve.load import Run
from octavo.cli.picture import Panel, Point, draw_panels

CURVE_POINTS = 200
LEAST_MILLISECONDS = 0.01
"""Shorter ones stand at the left edge: the axis is logarithmic."""

LATENCIES: dict[str, Callable[[Answer], list[float]]] = {
    "Time to first token": lambda answer: [ttft(answer)],
    "Inter-token latency": gaps,
    "Time per output token": lambda answer: [tpot(answer)],
    "End-to-end latency": lambda answer: [e2el(answer)],
}


def draw(runs: Mapping[float, Run], rows: Sequence[Mapping[str, object]]) -> str:
    """The picture of the runs at each rate, and of their figures."""
    panels = [panel for title, of in LATENCIES.items() if (panel := _distribution(title, of, runs))]
    return draw_panels(panels + [panel for panel in [_served(rows)] if panel])


def _distribution(title: str, of: Callable[[Answer], list[float]], runs: Mapping[float, Run]) -> Panel | None:
    """Share of the answers (or of the gaps) that took no longer than x; a curve a rate. None without any."""
    curves: dict[str, list[Point]] = {}
    for rate, run in runs.items():
        values = [1e3 * value for answer in run.answers if answer.error is None for value in of(answer)]
        if values:
            percents = np.linspace(0, 100, CURVE_POINTS + 1)
            places = np.maximum(LEAST_MILLISECONDS, np.percentile(values, percents))
            curves[f"{rate:g} requests/s"] = list(zip(places.tolist(), percents.tolist(), strict=True))
    return Panel(title, "milliseconds", "%", curves, is_log=True) if curves else None


def _served(rows: Sequence[Mapping[str, object]]) -> Panel | None:
    """What came out against what went in; None where no two rates can be compared."""
    names = {"requests/s answered": "requests_per_second", "goodput": "goodput"}
    finite = [row for row in rows if row["request_rate"] != "inf"]
    curves = {
        name: sorted((_number(row["request_rate"]), _number(row[key])) for row in finite if row[key] is not None)
        for name, key in names.items()
    }
    if len(finite) < 2:
        return None
    shown = {name: points for name, points in curves.items() if points}
    return Panel("Served", "requests/s offered", "requests/s", shown)


def _number(value: object) -> float:
    assert isinstance(value, float | int)
    return float(value)
