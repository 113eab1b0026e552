"""The engine's figures as Prometheus series, under the names that vLLM dashboards use and, for the rest, ``octavo:``.

Gauges and counters are read from the engine's latest snapshot when scraped, so they are consistent with each other and
right when nothing runs; histograms are fed as requests and steps end. Labels have few values: the served model, how a
request ended, what a block is used for, why one was refused.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo.core.pin_types import PIN_REFUSALS
from octavo.engine.messages import TIMEOUTS, EngineOutputs, EngineStats, RequestTimes

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
LENGTH_BUCKETS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
ITERATION_BUCKETS = tuple(float(2**power) for power in range(15))

FINISHED_REASONS = ("stop", "length", "abort", "error")


class EngineMetrics:
    """All series of one engine, in a registry of their own.

    ``model_name`` is the label of every series, as dashboards expect.
    """

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._stats = EngineStats()
        self._finished = Counter(dict.fromkeys(FINISHED_REASONS, 0))
        self._refused: Counter[str] = Counter()
        self.num_engine_restarts = 0
        self._queue_figures: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._registry.register(_SnapshotCollector(self, model_name))
        histogram = _HistogramMaker(self._registry, model_name)
        self._first_token = histogram(
            "vllm:time_to_first_token_seconds", "Arrival to first token of a choice.", TTFT_BUCKETS
        )
        self._intervals = histogram("vllm:inter_token_latency_seconds", "Between tokens of a choice.", ITL_BUCKETS)
        self._latency = histogram("vllm:e2e_request_latency_seconds", "Arrival to end of a choice.", LATENCY_BUCKETS)
        self._queue = histogram(
            "vllm:request_queue_time_seconds", "Arrival to first step of a choice.", LATENCY_BUCKETS
        )
        self._prompt = histogram("vllm:request_prompt_tokens", "Prompt tokens a choice.", LENGTH_BUCKETS)
        self._generation = histogram("vllm:request_generation_tokens", "Tokens generated a choice.", LENGTH_BUCKETS)
        self._iteration = histogram("vllm:iteration_tokens_total", "Tokens computed a step.", ITERATION_BUCKETS)

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
        return self._refused + Counter(self._stats.rejected)

    def count_refused(self, reason: str) -> None:
        """A request that did not reach the engine. ``reason`` is one of a few fixed words, never a client's text."""
        self._refused[reason] += 1

    def count_engine_restart(self) -> None:
        """Another engine process takes the place of one that has ended; what the engine counts begins at 0 again."""
        self.num_engine_restarts += 1

    def watch_queue(self, figures: Callable[[], tuple[int, int]]) -> None:
        """``figures``: the requests that the server has let in and that have not started, and their prompt tokens."""
        self._queue_figures = figures

    @property
    def queue(self) -> tuple[int, int]:
        return self._queue_figures()

    def observe(self, outputs: EngineOutputs, iterations: Iterable[int]) -> None:
        """Take in what the engine reports; ``iterations``: tokens computed in each step that the outputs cover."""
        if outputs.stats is not None:
            self._stats = outputs.stats
        for seconds in outputs.first_token_seconds:
            self._first_token.observe(seconds)
        for seconds in outputs.token_intervals:
            self._intervals.observe(seconds)
        for num_tokens in iterations:
            self._iteration.observe(num_tokens)
        for times in outputs.finished:
            self._observe_finished(times)

    def _observe_finished(self, times: RequestTimes) -> None:
        self._finished[times.finish_reason] += 1
        self._latency.observe(times.finished - times.arrival)
        if times.scheduled is not None:
            self._queue.observe(times.scheduled - times.arrival)
        self._prompt.observe(times.num_prompt_tokens)
        self._generation.observe(times.num_generation_tokens)

    def render(self) -> bytes:
        """The page that Prometheus scrapes, text format 0.0.4."""
        return generate_latest(self._registry)


class _HistogramMaker:
    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._registry = registry
        self._model_name = model_name

    def __call__(self, name: str, documentation: str, buckets: Sequence[float]) -> Histogram:
        histogram = Histogram(name, documentation, ["model_name"], registry=self._registry, buckets=buckets)
        return histogram.labels(self._model_name)


class _SnapshotCollector(Collector):
    """Gauges and counters made at each scrape from one snapshot."""

    def __init__(self, metrics: EngineMetrics, model_name: str) -> None:
        self._metrics = metrics
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        stats = self._metrics.stats
        # Cached blocks that nobody refers to count as free (spec D23).
        usage = stats.num_active_blocks / stats.num_blocks if stats.num_blocks else 0.0
        yield self._gauge("vllm:num_requests_running", "Choices in the running batch.", stats.num_running)
        yield self._gauge("vllm:num_requests_waiting", "Choices waiting to run.", stats.num_waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", usage)
        yield self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up.", stats.prefix_queries)
        yield self._counter("vllm:prefix_cache_hits", "Prompt tokens found.", stats.prefix_hits)
        yield self._counter("vllm:num_preemptions", "Preemptions.", stats.num_preemptions)
        yield self._counter("vllm:prompt_tokens", "Tokens of begun prompts, cached or not.", stats.prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Tokens generated.", stats.generation_tokens)
        yield self._labelled("vllm:request_success", "Ended choices.", "finished_reason", self._metrics.finished)
        yield from self._speculation(stats)
        yield from self._own(stats)

    def _speculation(self, stats: EngineStats) -> Iterator[Metric]:
        """Tokens that were computed before they were known."""
        counter = self._counter
        yield counter("vllm:spec_decode_num_drafts", "Times that tokens were drafted.", stats.num_drafts)
        yield counter("vllm:spec_decode_num_draft_tokens", "Tokens drafted.", stats.num_draft_tokens)
        yield counter("vllm:spec_decode_num_accepted_tokens", "Of them, accepted.", stats.num_accepted_tokens)

    def _own(self, stats: EngineStats) -> Iterator[Metric]:
        by_state = {
            "free": stats.num_free_blocks,
            "cached": stats.num_cached_blocks,
            "active": stats.num_active_blocks,
            "shared": stats.num_shared_blocks,
            "pinned": stats.num_pinned_blocks,
        }
        yield self._by_state("octavo:kv_blocks", "KV blocks by state.", by_state)
        allocatable = stats.num_free_blocks + stats.num_cached_blocks
        yield self._gauge("octavo:kv_blocks_total", "KV blocks in the pool.", stats.num_blocks)
        yield self._gauge("octavo:kv_blocks_allocatable", "KV blocks that a request could get now.", allocatable)
        yield self._counter("octavo:copy_on_write_copies", "Blocks copied for writing.", stats.copy_on_write_copies)
        yield from self._pins(stats)
        yield from self._preemption(stats)
        yield from self._disk(stats)
        num_requests, num_tokens = self._metrics.queue
        yield self._gauge("octavo:queued_requests", "Choices let in and not started.", num_requests)
        yield self._gauge("octavo:queued_tokens", "Their prompt tokens.", num_tokens)
        yield from self._tenants(stats)
        yield self._counter("octavo:engine_restarts", "Engines started anew.", self._metrics.num_engine_restarts)
        yield self._counter("octavo:steps", "Steps of the engine.", stats.num_steps)
        timed_out = Counter[str]({bound: stats.timed_out.get(bound, 0) for bound in TIMEOUTS})
        yield self._labelled("octavo:requests_timed_out", "Requests ended by their time.", "bound", timed_out)
        yield self._labelled("octavo:requests_rejected", "Refused requests.", "reason", self._metrics.rejected)

    def _tenants(self, stats: EngineStats) -> Iterator[Metric]:
        """Of the first tenants to come each, of all others together: the labels are bounded (``core.tenants``)."""
        prompts = Counter({name: counts.prompt_tokens for name, counts in stats.tenants.items()})
        answers = Counter({name: counts.generation_tokens for name, counts in stats.tenants.items()})
        yield self._labelled("octavo:tenant_prompt_tokens", "Tokens of begun prompts.", "tenant", prompts)
        yield self._labelled("octavo:tenant_generation_tokens", "Tokens generated.", "tenant", answers)

    def _pins(self, stats: EngineStats) -> Iterator[Metric]:
        """Prefixes that are kept whatever else needs their blocks."""
        refused = Counter[str]({reason: stats.pins_refused.get(reason, 0) for reason in PIN_REFUSALS})
        yield self._gauge("octavo:pins", "Pins that have not ended.", stats.num_pins)
        yield self._gauge("octavo:pin_quota_blocks", "KV blocks that pins may hold.", stats.max_pinned_blocks)
        yield self._labelled("octavo:pins_refused", "Pins that could not be had.", "reason", refused)

    def _preemption(self, stats: EngineStats) -> Iterator[Metric]:
        """Who had to give way, and the host pool, where blocks go then."""
        by_mode = Counter(swap=stats.num_swaps, recompute=stats.num_preemptions - stats.num_swaps)
        yield self._labelled("octavo:preemptions", "Preemptions by what became of the blocks.", "mode", by_mode)
        yield self._counter("octavo:preempted_tokens", "Computed tokens lost.", stats.num_preempted_tokens)
        yield self._counter("octavo:swap_out_blocks", "KV blocks copied to the host pool.", stats.swapped_out_blocks)
        yield self._counter("octavo:swap_in_blocks", "KV blocks copied back.", stats.swapped_in_blocks)
        bytes_out, bytes_in = (num * stats.block_bytes for num in (stats.swapped_out_blocks, stats.swapped_in_blocks))
        yield self._counter("octavo:swap_out_bytes", "Bytes of the blocks copied to the host pool.", bytes_out)
        yield self._counter("octavo:swap_in_bytes", "Bytes of the blocks copied back.", bytes_in)
        yield self._gauge("octavo:swapped_blocks", "Blocks of sequences swapped out.", stats.num_swapped_blocks)
        by_state = {
            "free": stats.num_host_blocks - stats.num_host_cached_blocks - stats.num_swapped_blocks,
            "cached": stats.num_host_cached_blocks,
            "swapped": stats.num_swapped_blocks,
        }
        yield self._by_state("octavo:host_blocks", "Blocks of the host pool by state.", by_state)

    def _disk(self, stats: EngineStats) -> Iterator[Metric]:
        """The disk tier of the prefix cache."""
        num_cached = stats.num_disk_cached_blocks
        by_state = {"free": stats.num_disk_blocks - num_cached, "cached": num_cached}
        yield self._by_state("octavo:disk_blocks", "Blocks of the disk tier by state.", by_state)
        yield self._counter("octavo:disk_write_blocks", "KV blocks written to disk.", stats.disk_written_blocks)
        yield self._counter("octavo:disk_read_blocks", "KV blocks read from disk.", stats.disk_read_blocks)

    def _by_state(self, name: str, documentation: str, counts: Mapping[str, int]) -> Metric:
        family = GaugeMetricFamily(name, documentation, labels=["model_name", "state"])
        for state, count in counts.items():
            family.add_metric([self._model_name, state], count)
        return family

    def _gauge(self, name: str, documentation: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, documentation, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def _counter(self, name: str, documentation: str, value: float) -> Metric:
        family = CounterMetricFamily(name, documentation, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def _labelled(self, name: str, documentation: str, label: str, values: Counter[str]) -> Metric:
        family = CounterMetricFamily(name, documentation, labels=["model_name", label])
        for key, value in sorted(values.items()):
            family.add_metric([self._model_name, key], value)
        return family
