"""The figures of a run, by name; docs/simulator.md says what each of them is."""

from octavo.core.scheduler_types import SchedulerCounters
from octavo.sim.recorder import LATENCIES, Recorder

PERCENTILES = (50, 90, 95, 99)


def figures(recorder: Recorder) -> dict[str, object]:
    """Latencies in milliseconds; None where there is nothing to tell."""
    counters = [scheduler.counters for scheduler in recorder.schedulers]
    seconds = recorder.seconds
    queries, hits = _sum(counters, "prefix_queries"), _sum(counters, "prefix_hits")
    points = recorder.series.points
    row: dict[str, object] = {
        "num_requests": recorder.num_arrived,
        "num_completed": recorder.num_completed,
        "num_rejected": recorder.rejected.total(),
        "rejected": dict(recorder.rejected),
        "seconds": seconds,
        "busy_share": _ratio(recorder.busy_seconds, seconds * len(recorder.schedulers)),
        "num_steps": _sum(counters, "num_steps"),
        "prompt_tokens": recorder.prompt_tokens,
        "output_tokens": recorder.output_tokens,
        "computed_tokens": recorder.computed_tokens,
        "requests_per_second": _ratio(recorder.num_completed, seconds),
        "output_tokens_per_second": _ratio(recorder.output_tokens, seconds),
        "total_tokens_per_second": _ratio(recorder.prompt_tokens + recorder.output_tokens, seconds),
        "goodput": _ratio(recorder.num_good, seconds) if recorder.slos else None,
        "goodput_share": _ratio(recorder.num_good, recorder.num_arrived) if recorder.slos else None,
        "prefix_query_tokens": queries,
        "prefix_hit_tokens": hits,
        "prefix_hit_share": _ratio(hits, queries),
        "num_preemptions": _sum(counters, "num_preemptions"),
        "num_swaps": _sum(counters, "num_swaps"),
        "preempted_tokens": _sum(counters, "num_preempted_tokens"),
        "preempted_share": _ratio(recorder.num_preempted, recorder.num_completed),
        "filled_share": recorder.series.mean(lambda point: point.filled),
        "held_share": recorder.series.mean(lambda point: point.held),
        "running_mean": recorder.series.mean(lambda point: point.running),
        "running_max": max((point.running for point in points), default=None),
        "waiting_mean": recorder.series.mean(lambda point: point.waiting),
        "waiting_max": max((point.waiting for point in points), default=None),
    }
    return row | latencies(recorder)


def latencies(recorder: Recorder) -> dict[str, object]:
    """Means and percentiles, in milliseconds."""
    row: dict[str, object] = {}
    for name in LATENCIES:
        found = recorder.latencies[name]
        row[f"{name}_mean"] = _milliseconds(found.mean)
        row |= {f"{name}_p{percent}": _milliseconds(found.percentile(percent)) for percent in PERCENTILES}
        row[f"{name}_max"] = _milliseconds(found.most if found.count else None)
    return row


def series(recorder: Recorder) -> dict[str, list[float]]:
    """What ``Series`` has seen, a list a column."""
    points = recorder.series.points
    return (
        {name: list(column) for name, column in zip(points[0]._fields, zip(*points, strict=True), strict=True)}
        if points
        else {}
    )


def _sum(counters: list[SchedulerCounters], name: str) -> int:
    return sum(getattr(each, name) for each in counters)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
