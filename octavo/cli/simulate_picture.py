"""A simulation as a picture: how latencies are distributed, and memory, queue and preemptions over time."""

from collections.abc import Callable, Mapping, Sequence

from octavo.cli.picture import Panel, Point, draw_panels
from octavo.sim.recorder import Recorder
from octavo.sim.series import Point as Moment

PERCENTS = (*range(100), 99.5, 99.9, 100)

LEAST_MILLISECONDS = 0.01
"""Shorter ones stand at the left edge: the axis is logarithmic."""

LATENCIES = {"TTFT": "ttft", "ITL": "itl", "TPOT": "tpot", "end to end": "e2el", "in line": "queue"}


def draw(recorder: Recorder) -> str:
    """An SVG file of it."""
    moments = recorder.series.points
    panels = [
        _distribution(recorder),
        _over_time(
            "KV memory",
            "%",
            moments,
            {"slots filled": lambda at: 100 * at.filled, "blocks held": lambda at: 100 * at.held},
        ),
        _over_time(
            "Requests", "requests", moments, {"running": lambda at: at.running, "waiting": lambda at: at.waiting}
        ),
        _over_time("Preemptions so far", "preemptions", moments, {"preemptions": lambda at: at.preemptions}),
    ]
    return draw_panels([panel for panel in panels if panel is not None])


def _distribution(recorder: Recorder) -> Panel | None:
    """Share of the requests (or of the gaps) that took no longer than x."""
    curves: dict[str, Sequence[Point]] = {}
    for title, name in LATENCIES.items():
        found = recorder.latencies[name]
        if found.count:
            curves[title] = [
                (max(LEAST_MILLISECONDS, 1e3 * (found.percentile(percent) or 0.0)), float(percent))
                for percent in PERCENTS
            ]
    return Panel("Latencies", "milliseconds", "%", curves, is_log=True) if curves else None


def _over_time(
    title: str, label: str, moments: Sequence[Moment], curves: Mapping[str, Callable[[Moment], float]]
) -> Panel | None:
    if not moments or not moments[-1].seconds:
        return None
    points = {name: [(at.seconds, float(of(at))) for at in moments] for name, of in curves.items()}
    return Panel(title, "seconds", label, points)
