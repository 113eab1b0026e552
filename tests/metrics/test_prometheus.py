"""B59: names and labels as dashboards expect them, figures that add up, counters that never fall."""

import math

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from octavo.engine.messages import EngineOutputs, EngineStats, RequestTimes
from octavo.metrics.histograms import TTFT_BUCKETS
from octavo.metrics.prometheus import EngineMetrics

GAUGES = [
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "octavo:swapped_blocks",
]  # fmt: skip
COUNTERS = [
    "vllm:prefix_cache_queries", "vllm:prefix_cache_hits", "vllm:num_preemptions", "vllm:prompt_tokens",
    "vllm:generation_tokens", "vllm:request_success", "octavo:copy_on_write_copies", "octavo:preempted_tokens",
    "octavo:requests_rejected", "octavo:preemptions", "octavo:swap_out_blocks", "octavo:swap_in_blocks",
    "octavo:swap_out_bytes", "octavo:swap_in_bytes", "vllm:spec_decode_num_drafts",
    "vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens",
]  # fmt: skip
HISTOGRAMS = [
    "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds", "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds", "vllm:request_prompt_tokens", "vllm:request_generation_tokens",
    "vllm:iteration_tokens_total",
]  # fmt: skip


def scrape(metrics: EngineMetrics) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}


def value(metrics: EngineMetrics, sample_name: str, **labels: str) -> float:
    samples = [sample for family in scrape(metrics).values() for sample in family.samples]
    (found,) = [
        each.value for each in samples if each.name == sample_name and each.labels == {"model_name": "m"} | labels
    ]
    return found


def ended(reason: str, scheduled: float | None = 11.0) -> RequestTimes:
    return RequestTimes("r", 0, 10.0, scheduled, 12.0, 15.0, 7, 3, reason)


def test_names() -> None:
    families = scrape(EngineMetrics("m"))
    for names, kind in ((GAUGES, "gauge"), (COUNTERS, "counter"), (HISTOGRAMS, "histogram")):
        for name in names:
            assert families[name].type == kind
            assert all(sample.labels["model_name"] == "m" for sample in families[name].samples)


def test_snapshot_is_what_is_shown() -> None:
    metrics = EngineMetrics("m")
    stats = EngineStats(
        num_running=3, num_waiting=2, num_blocks=24, num_free_blocks=10, num_cached_blocks=8, num_active_blocks=6,
        num_shared_blocks=1, num_allocatable_blocks=15, prefix_queries=400, prefix_hits=324,
        num_preemptions=5, num_preempted_tokens=77, prompt_tokens=500, generation_tokens=60, rejected={"too_long": 2},
        num_drafts=4, num_draft_tokens=30, num_accepted_tokens=21,
    )  # fmt: skip
    metrics.observe(EngineOutputs(stats=stats), [])
    metrics.count_refused("queue_full")
    assert value(metrics, "vllm:num_requests_running") == 3
    assert value(metrics, "vllm:num_requests_waiting") == 2
    assert value(metrics, "vllm:kv_cache_usage_perc") == 0.25  # D23: cached blocks without a user count as free
    assert value(metrics, "vllm:prefix_cache_queries_total") == 400
    assert value(metrics, "vllm:prefix_cache_hits_total") == 324
    assert value(metrics, "vllm:spec_decode_num_drafts_total") == 4
    assert value(metrics, "vllm:spec_decode_num_draft_tokens_total") == 30
    assert value(metrics, "vllm:spec_decode_num_accepted_tokens_total") == 21
    assert value(metrics, "octavo:kv_blocks_allocatable") == 15
    assert value(metrics, "octavo:kv_blocks", state="cached") == 8
    assert value(metrics, "octavo:requests_rejected_total", reason="too_long") == 2
    assert value(metrics, "octavo:requests_rejected_total", reason="queue_full") == 1
    # (i): an idle engine shows zeros, since every turn brings a snapshot; turns without one change nothing.
    metrics.observe(EngineOutputs(), [])
    assert value(metrics, "vllm:num_requests_running") == 3
    metrics.observe(EngineOutputs(stats=EngineStats(num_blocks=24, num_free_blocks=24)), [])
    assert [value(metrics, name) for name in GAUGES] == [0, 0, 0, 0]


def test_preemption_and_the_host_pool() -> None:
    metrics = EngineMetrics("m")
    assert value(metrics, "octavo:preemptions_total", mode="swap") == 0, "a series is there before it counts anything"
    stats = EngineStats(
        num_preemptions=9, num_swaps=4, num_preempted_tokens=77, swapped_out_blocks=31, swapped_in_blocks=19,
        block_bytes=1000, num_host_blocks=50, num_host_cached_blocks=20, num_swapped_blocks=12,
    )  # fmt: skip
    metrics.observe(EngineOutputs(stats=stats), [])
    assert value(metrics, "vllm:num_preemptions_total") == 9
    assert value(metrics, "octavo:preemptions_total", mode="swap") == 4
    assert value(metrics, "octavo:preemptions_total", mode="recompute") == 5
    assert value(metrics, "octavo:preempted_tokens_total") == 77
    assert value(metrics, "octavo:swap_out_blocks_total") == 31
    assert value(metrics, "octavo:swap_in_blocks_total") == 19
    assert value(metrics, "octavo:swap_out_bytes_total") == 31_000
    assert value(metrics, "octavo:swap_in_bytes_total") == 19_000
    assert value(metrics, "octavo:swapped_blocks") == 12
    states = {state: value(metrics, "octavo:host_blocks", state=state) for state in ("free", "cached", "swapped")}
    assert states == {"free": 18, "cached": 20, "swapped": 12}


def test_the_disk_tier() -> None:
    metrics = EngineMetrics("m")
    stats = EngineStats(num_disk_blocks=40, num_disk_cached_blocks=9, disk_written_blocks=12, disk_read_blocks=5)
    metrics.observe(EngineOutputs(stats=stats), [])
    assert [value(metrics, "octavo:disk_blocks", state=state) for state in ("free", "cached")] == [31, 9]
    assert value(metrics, "octavo:disk_write_blocks_total") == 12
    assert value(metrics, "octavo:disk_read_blocks_total") == 5


def test_every_ending_is_counted() -> None:
    metrics = EngineMetrics("m")
    reasons = ["stop"] * 2 + ["length"] * 3 + ["abort"] * 3 + ["error"]
    metrics.observe(EngineOutputs(finished=[ended(reason) for reason in reasons]), [])
    for reason in set(reasons):
        shown = value(metrics, "vllm:request_success_total", finished_reason=reason)
        assert shown == reasons.count(reason)


def test_histograms() -> None:
    metrics = EngineMetrics("m")
    outputs = EngineOutputs(
        finished=[ended("stop"), ended("abort", scheduled=None)],
        first_token_seconds=[0.015, 3000.0],
        cached_shares=[0.0, 1.0],
        token_intervals=[0.01, 0.02, 0.03],
    )
    metrics.observe(outputs, [16, 2000])
    counts = {
        "vllm:time_to_first_token_seconds": 2,
        "vllm:inter_token_latency_seconds": 3,
        "vllm:e2e_request_latency_seconds": 2,
        "vllm:request_queue_time_seconds": 1,
        "vllm:request_prompt_tokens": 2,
        "vllm:request_generation_tokens": 2,
        "vllm:iteration_tokens_total": 2,
    }
    for name, count in counts.items():
        assert value(metrics, f"{name}_count") == count
        assert value(metrics, f"{name}_bucket", le="+Inf") == count  # (vii)
    assert value(metrics, "vllm:e2e_request_latency_seconds_sum") == 10.0
    assert value(metrics, "vllm:request_queue_time_seconds_sum") == 1.0
    assert value(metrics, "vllm:iteration_tokens_total_sum") == 2016
    assert value(metrics, "vllm:time_to_first_token_seconds_bucket", le="0.02") == 1


def test_first_token_buckets_are_the_published_ones() -> None:
    family = scrape(EngineMetrics("m"))["vllm:time_to_first_token_seconds"]
    bounds = [float(sample.labels["le"]) for sample in family.samples if sample.name.endswith("_bucket")]
    assert bounds == [*TTFT_BUCKETS, math.inf]
    assert TTFT_BUCKETS[:6] == (0.001, 0.005, 0.01, 0.02, 0.04, 0.06)
    assert TTFT_BUCKETS[-3:] == (160.0, 640.0, 2560.0)


def test_registries_are_apart() -> None:
    first, second = EngineMetrics("m"), EngineMetrics("m")
    first.count_refused("invalid")
    assert value(first, "octavo:requests_rejected_total", reason="invalid") == 1
    assert value(second, "octavo:requests_rejected_total", reason="invalid") == 0
