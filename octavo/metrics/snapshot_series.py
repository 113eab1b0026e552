"""Gauges and counters made at each scrape from one snapshot of the engine, so that they agree with each other."""

from collections import Counter
from collections.abc import Iterator, Mapping
from math import nan

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from octavo.core.pin_types import PIN_REFUSALS
from octavo.engine.messages import EngineStats


class SnapshotSeries:
    """Makes the series of snapshots; ``model_name`` is the label of all of them."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name

    def collect(self, stats: EngineStats, now: float) -> Iterator[Metric]:
        """``now``: ``steady_time()``."""
        yield self.gauge("vllm:num_requests_running", "Choices in the running batch.", stats.num_running)
        yield self.gauge("vllm:num_requests_waiting", "Choices waiting to run.", stats.num_waiting)
        yield self.gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", stats.kv_cache_usage)
        yield self.counter("vllm:prefix_cache_queries", "Prompt tokens looked up.", stats.prefix_queries)
        yield self.counter("vllm:prefix_cache_hits", "Prompt tokens found.", stats.prefix_hits)
        yield self.counter("vllm:num_preemptions", "Preemptions.", stats.num_preemptions)
        yield self.counter("vllm:prompt_tokens", "Tokens of begun prompts, cached or not.", stats.prompt_tokens)
        yield self.counter("vllm:generation_tokens", "Tokens generated.", stats.generation_tokens)
        yield from self._speculation(stats)
        yield from self._blocks(stats)
        yield from self._sharing(stats)
        yield from self._pins(stats)
        yield from self._preemption(stats)
        yield from self._swapping(stats)
        yield from self._disk(stats)
        yield from self._tenants(stats)
        age = 0.0 if stats.head_since is None else max(0.0, now - stats.head_since)
        yield self.gauge("octavo:queue_head_age_seconds", "How long the first in line has waited.", age)
        yield self.counter("octavo:steps", "Steps of the engine.", stats.num_steps)

    def gauge(self, name: str, documentation: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, documentation, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def gauges(self, name: str, documentation: str, label: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(name, documentation, labels=["model_name", label])
        for key, value in values.items():
            family.add_metric([self._model_name, key], value)
        return family

    def counter(self, name: str, documentation: str, value: float) -> Metric:
        family = CounterMetricFamily(name, documentation, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def counters(self, name: str, documentation: str, label: str, values: Counter[str]) -> Metric:
        family = CounterMetricFamily(name, documentation, labels=["model_name", label])
        for key, value in sorted(values.items()):
            family.add_metric([self._model_name, key], value)
        return family

    def _speculation(self, stats: EngineStats) -> Iterator[Metric]:
        """Tokens that were computed before they were known."""
        counter = self.counter
        yield counter("vllm:spec_decode_num_drafts", "Times that tokens were drafted.", stats.num_drafts)
        yield counter("vllm:spec_decode_num_draft_tokens", "Tokens drafted.", stats.num_draft_tokens)
        yield counter("vllm:spec_decode_num_accepted_tokens", "Of them, accepted.", stats.num_accepted_tokens)

    def _blocks(self, stats: EngineStats) -> Iterator[Metric]:
        by_state = {
            "free": stats.num_free_blocks,
            "cached": stats.num_cached_blocks,
            "pinned": stats.num_idle_pinned_blocks,
            "active": stats.num_active_blocks,
            "shared": stats.num_shared_blocks,
            "swapped": stats.num_swapped_blocks,
        }
        allocatable, longest = stats.num_allocatable_blocks, stats.max_prompt_tokens
        filled = stats.num_filled_slots / stats.num_slots if stats.num_slots else nan
        yield self.gauges("octavo:kv_blocks", "KV blocks by state.", "state", by_state)
        yield self.gauge("octavo:kv_blocks_total", "KV blocks in the pool.", stats.num_blocks)
        yield self.gauge("octavo:kv_block_tokens", "Tokens in a KV block.", stats.block_size)
        yield self.counter("octavo:evicted_blocks", "Cached KV blocks that made room.", stats.num_evicted_blocks)
        yield self.gauge("octavo:kv_blocks_allocatable", "KV blocks that a request could get now.", allocatable)
        yield self.gauge("octavo:admissible_prompt_tokens", "The longest prompt that would be admitted now.", longest)
        yield self.gauge("octavo:filled_slot_ratio", "Share of the slots in use that hold a token, 0 to 1.", filled)

    def _sharing(self, stats: EngineStats) -> Iterator[Metric]:
        saved = Counter(prefix_cache=stats.prefix_hits, fork=stats.num_forked_tokens)
        yield self.counter("octavo:copy_on_write_copies", "Blocks copied for writing.", stats.copy_on_write_copies)
        yield self.counters("octavo:sharing_saved_tokens", "Tokens not computed since another has them.", "by", saved)
        blocks = stats.num_saved_blocks
        yield self.gauge("octavo:sharing_saved_blocks", "Blocks that it would take more without sharing.", blocks)

    def _tenants(self, stats: EngineStats) -> Iterator[Metric]:
        """Of the first tenants to come each, of all others together: the labels are bounded (``core.tenants``)."""
        prompts = Counter({name: counts.prompt_tokens for name, counts in stats.tenants.items()})
        answers = Counter({name: counts.generation_tokens for name, counts in stats.tenants.items()})
        yield self.counters("octavo:tenant_prompt_tokens", "Tokens of begun prompts.", "tenant", prompts)
        yield self.counters("octavo:tenant_generation_tokens", "Tokens generated.", "tenant", answers)

    def _pins(self, stats: EngineStats) -> Iterator[Metric]:
        """Prefixes that are kept whatever else needs their blocks."""
        refused = Counter[str]({reason: stats.pins_refused.get(reason, 0) for reason in PIN_REFUSALS})
        yield self.gauge("octavo:pins", "Pins that have not ended.", stats.num_pins)
        yield self.gauge("octavo:pinned_blocks", "KV blocks that pins hold, in use or not.", stats.num_pinned_blocks)
        yield self.gauge("octavo:pin_quota_blocks", "KV blocks that pins may hold.", stats.max_pinned_blocks)
        yield self.counters("octavo:pins_refused", "Pins that could not be had.", "reason", refused)

    def _preemption(self, stats: EngineStats) -> Iterator[Metric]:
        """Who had to give way."""
        by_mode = Counter(swap=stats.num_swaps, recompute=stats.num_preemptions - stats.num_swaps)
        yield self.counters("octavo:preemptions", "Preemptions by what became of the blocks.", "mode", by_mode)
        yield self.counter("octavo:preempted_tokens", "Computed tokens lost.", stats.num_preempted_tokens)

    def _swapping(self, stats: EngineStats) -> Iterator[Metric]:
        """The host pool."""
        counter, num_out, num_in = self.counter, stats.swapped_out_blocks, stats.swapped_in_blocks
        bytes_out, bytes_in = num_out * stats.block_bytes, num_in * stats.block_bytes
        yield counter("octavo:swap_out_blocks", "KV blocks copied to the host pool.", num_out)
        yield counter("octavo:swap_in_blocks", "KV blocks copied back.", num_in)
        yield counter("octavo:swap_out_bytes", "Bytes of the blocks copied to the host pool.", bytes_out)
        yield counter("octavo:swap_in_bytes", "Bytes of the blocks copied back.", bytes_in)
        yield counter("octavo:swap_out_seconds", "Time spent copying to the host pool.", stats.swap_out_seconds)
        yield counter("octavo:swap_in_seconds", "Time spent copying back.", stats.swap_in_seconds)
        yield self.gauge("octavo:swapped_blocks", "Blocks of sequences swapped out.", stats.num_swapped_blocks)
        by_state = {
            "free": stats.num_host_blocks - stats.num_host_cached_blocks - stats.num_swapped_blocks,
            "cached": stats.num_host_cached_blocks,
            "swapped": stats.num_swapped_blocks,
        }
        yield self.gauges("octavo:host_blocks", "Blocks of the host pool by state.", "state", by_state)

    def _disk(self, stats: EngineStats) -> Iterator[Metric]:
        """The disk tier of the prefix cache."""
        num_cached = stats.num_disk_cached_blocks
        by_state = {"free": stats.num_disk_blocks - num_cached, "cached": num_cached}
        yield self.gauges("octavo:disk_blocks", "Blocks of the disk tier by state.", "state", by_state)
        yield self.counter("octavo:disk_write_blocks", "KV blocks written to disk.", stats.disk_written_blocks)
        yield self.counter("octavo:disk_read_blocks", "KV blocks read from disk.", stats.disk_read_blocks)
