"""The engine's figures as Prometheus series, under the names that vLLM dashboards use and, for the rest, ``octavo:``.

Gauges and counters are read from the engine's latest snapshot when scraped, so they are consistent with each other and
right when nothing runs; histograms are fed as requests and steps end. A scrape asks nothing of the engine. Labels have
few values: the served model, how a request ended, what a block is used for, why one was refused.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from octavo.engine.messages import TIMEOUTS, EngineOutputs, EngineStats, Timeout
from octavo.engine.steady_clock import steady_time
from octavo.metrics.histograms import EventHistograms
from octavo.metrics.lengths import RecentLengths
from octavo.metrics.snapshot_series import SnapshotSeries

FINISHED_REASONS = ("stop", "length", "abort", "error")

REFUSALS = ("queue_full", "queue_slow", "rate_limit", "invalid")
"""Of requests that do not reach the engine."""

MAX_REASONS = 64
"""The engine names the field at fault, of which there are fewer; should it ever name more, they are one: ``other``."""


class EngineMetrics:
    """All series of one engine, in a registry of their own.

    ``model_name`` is the label of every series, as dashboards expect. ``clock``: ``steady_time()``.
    """

    def __init__(self, model_name: str, clock: Callable[[], float] = steady_time) -> None:
        self._registry = CollectorRegistry()
        self._clock = clock
        self._stats = EngineStats()
        self._finished = Counter(dict.fromkeys(FINISHED_REASONS, 0))
        self._refused: Counter[str] = Counter(dict.fromkeys(REFUSALS, 0))
        self._timed_out: Counter[Timeout] = Counter(dict.fromkeys(TIMEOUTS, 0))
        self.num_engine_restarts = 0
        self._queue_figures: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._lengths = {"prompt": RecentLengths(time.monotonic), "output": RecentLengths(time.monotonic)}
        self._registry.register(_Scrape(self._collect))
        self._series = SnapshotSeries(model_name)
        self._histograms = EventHistograms(self._registry, model_name)

    @property
    def stats(self) -> EngineStats:
        return self._stats

    @property
    def finished(self) -> Counter[str]:
        """Ended choices by finish_reason."""
        return self._finished

    @property
    def rejected(self) -> Counter[str]:
        """Refused requests by reason: at the engine's door and, counted by ``count_refused``, before it."""
        rejected = self._refused.copy()
        for reason, count in self._stats.rejected.items():
            rejected[reason if reason in rejected or len(rejected) < MAX_REASONS else "other"] += count
        return rejected

    def count_refused(self, reason: str) -> None:
        """A request that did not reach the engine. ``reason`` is one of a few fixed words, never a client's text."""
        self._refused[reason] += 1

    def count_lost(self, num_choices: int) -> None:
        """The engine has ended before these; it tells nothing of them any more."""
        self._finished["error"] += num_choices

    def count_timed_out(self, bound: Timeout) -> None:
        """One whose time was over before it reached the engine, which counts the others."""
        self._timed_out[bound] += 1

    @property
    def timed_out(self) -> Counter[str]:
        """Requests ended by their time, by which."""
        return Counter({bound: count + self._stats.timed_out.get(bound, 0) for bound, count in self._timed_out.items()})

    def count_engine_restart(self) -> None:
        """Another engine process takes the place of one that has ended: until it reports, nothing runs and there is no
        pool. What the engine counts begins at 0 again, but for refusals, which are counted here too."""
        self._refused = self.rejected
        self._stats = EngineStats()
        self.num_engine_restarts += 1

    def watch_queue(self, figures: Callable[[], tuple[int, int]]) -> None:
        """``figures``: the requests that the server has let in and that have not started, and their prompt tokens."""
        self._queue_figures = figures

    @property
    def queue(self) -> tuple[int, int]:
        return self._queue_figures()

    def observe(self, outputs: EngineOutputs, iterations: Iterable[int]) -> None:
        """Take in what the engine reports; ``iterations``: tokens computed in each step that the outputs cover."""
        histograms = self._histograms
        if outputs.stats is not None:
            self._stats = outputs.stats
        for seconds, share in zip(outputs.first_token_seconds, outputs.cached_shares, strict=True):
            histograms.observe_first_token(seconds, share)
        for seconds in outputs.token_intervals:
            histograms.interval.observe(seconds)
        for num_tokens in iterations:
            histograms.iteration.observe(num_tokens)
        for step in outputs.steps:
            histograms.observe_step(step)
        for times in outputs.finished:
            self._finished[times.finish_reason] += 1
            histograms.observe_finished(times)
            self._lengths["prompt"].note(times.num_prompt_tokens)
            self._lengths["output"].note(times.num_generation_tokens)

    def render(self) -> bytes:
        """The page that Prometheus scrapes, text format 0.0.4."""
        return generate_latest(self._registry)

    def _collect(self) -> Iterator[Metric]:
        series = self._series
        yield from series.collect(self._stats, self._clock())
        for name, lengths in self._lengths.items():
            quantiles = {str(quantile): value for quantile, value in lengths.quantiles().items()}
            yield series.gauges(f"octavo:{name}_length_tokens", f"Recent {name}s, in tokens.", "quantile", quantiles)
        num_requests, num_tokens = self.queue
        yield series.gauge("octavo:queued_requests", "Choices let in and not started.", num_requests)
        yield series.gauge("octavo:queued_tokens", "Their prompt tokens.", num_tokens)
        yield series.counter("octavo:engine_restarts", "Engines started anew.", self.num_engine_restarts)
        yield series.counters("vllm:request_success", "Ended choices.", "finished_reason", self._finished)
        yield series.counters("octavo:requests_timed_out", "Requests ended by their time.", "bound", self.timed_out)
        yield series.counters("octavo:requests_rejected", "Refused requests.", "reason", self.rejected)


class _Scrape(Collector):
    """Series that are made when somebody looks."""

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        return self._collect()
