"""All series: what the docs say of them, which labels they can have, and figures that several requests make."""

import math
import re
from pathlib import Path
from random import Random

import pytest
from prometheus_client import Metric

from octavo.core.tenants import TenantCounts
from octavo.engine.messages import EngineOutputs, EngineStats, RequestTimes, StepSeconds
from octavo.metrics.histograms import CACHED_SHARES, STEP_PARTS
from octavo.metrics.lengths import QUANTILES, WINDOW_COUNT, WINDOW_SECONDS, RecentLengths
from octavo.metrics.prometheus import MAX_REASONS, EngineMetrics
from tests.metrics.test_prometheus import scrape, value

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"

SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "gauge": ("",)}


def labels_of(family: Metric) -> set[str]:
    return {label for sample in family.samples for label in sample.labels} - {"model_name", "le"}


def documented() -> dict[str, tuple[str, set[str]]]:
    """Kind and labels by name, as the tables of the docs have them."""
    found = {}
    for line in DOCS.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 4 and cells[2] in SUFFIXES:
            for name in re.findall(r"`((?:vllm|octavo):\w+)`", cells[1]):
                assert name not in found, f"{name} stands there twice"
                found[name] = cells[2], set(re.findall(r"`(\w+)`", cells[3]))
    return found


def test_the_docs_and_the_page_have_the_same_series() -> None:
    metrics = EngineMetrics("m")
    metrics.observe(EngineOutputs(stats=EngineStats(tenants={"default": TenantCounts(1, 2)})), [])
    shown = {name: (family.type, labels_of(family)) for name, family in scrape(metrics).items()}
    # When a histogram began to count is a series too, by the client library.
    assert {name: each for name, each in shown.items() if not name.endswith("_created")} == documented()


def test_reasons_are_bounded() -> None:
    metrics = EngineMetrics("m")
    metrics.observe(EngineOutputs(stats=EngineStats(rejected={f"field_{i}": 1 for i in range(1000)})), [])
    samples = scrape(metrics)["octavo:requests_rejected"].samples
    assert len(samples) == MAX_REASONS + 1
    assert sum(sample.value for sample in samples) == 1000
    assert value(metrics, "octavo:requests_rejected_total", reason="other") == 1000 - MAX_REASONS + 4


def test_an_engine_that_has_ended_has_no_pool_and_its_refusals_stay_counted() -> None:
    """Else alerts would count the refusals again, and an old head of the line would grow older."""
    now = 1000.0
    metrics = EngineMetrics("m", lambda: now)
    metrics.count_refused("invalid")
    stats = EngineStats(num_running=3, num_blocks=8, num_active_blocks=8, head_since=900.0, rejected={"prompt": 2})
    metrics.observe(EngineOutputs(stats=stats), [])
    metrics.count_engine_restart()
    scraped = ("vllm:num_requests_running", "octavo:kv_blocks_total", "octavo:queue_head_age_seconds")
    assert [value(metrics, name) for name in scraped] == [0, 0, 0]
    assert value(metrics, "octavo:kv_blocks", state="active") == 0
    metrics.observe(EngineOutputs(stats=EngineStats(rejected={"prompt": 1})), [])
    assert value(metrics, "octavo:requests_rejected_total", reason="prompt") == 3
    assert value(metrics, "octavo:requests_rejected_total", reason="invalid") == 1


def test_blocks_by_state() -> None:
    metrics = EngineMetrics("m")
    stats = EngineStats(
        num_blocks=100, num_free_blocks=10, num_cached_blocks=20, num_idle_pinned_blocks=30, num_active_blocks=40,
        num_shared_blocks=7, num_pinned_blocks=35, num_allocatable_blocks=25, max_prompt_tokens=390, num_slots=640,
        num_filled_slots=600, num_saved_blocks=9, num_host_blocks=8, num_swapped_blocks=5, num_forked_tokens=12,
        prefix_hits=34, swap_out_seconds=1.5, swap_in_seconds=0.5, swapped_out_blocks=3, block_bytes=10, block_size=16,
        num_evicted_blocks=11,
    )  # fmt: skip
    metrics.observe(EngineOutputs(stats=stats), [])
    states = ("free", "cached", "pinned", "active", "shared", "swapped")
    assert [value(metrics, "octavo:kv_blocks", state=state) for state in states] == [10, 20, 30, 40, 7, 5]
    assert value(metrics, "vllm:kv_cache_usage_perc") == 0.7
    assert value(metrics, "octavo:pinned_blocks") == 35
    assert value(metrics, "octavo:kv_blocks_allocatable") == 25
    assert value(metrics, "octavo:kv_block_tokens") == 16
    assert value(metrics, "octavo:evicted_blocks_total") == 11
    assert value(metrics, "octavo:admissible_prompt_tokens") == 390
    assert value(metrics, "octavo:filled_slot_ratio") == 600 / 640
    assert value(metrics, "octavo:sharing_saved_blocks") == 9
    assert value(metrics, "octavo:sharing_saved_tokens_total", by="prefix_cache") == 34
    assert value(metrics, "octavo:sharing_saved_tokens_total", by="fork") == 12
    assert value(metrics, "octavo:swap_out_seconds_total") == 1.5
    assert value(metrics, "octavo:swap_in_seconds_total") == 0.5
    metrics.observe(EngineOutputs(stats=EngineStats(num_blocks=100)), [])
    assert math.isnan(value(metrics, "octavo:filled_slot_ratio"))


def test_the_head_of_the_line_ages_while_nothing_is_reported() -> None:
    now = [1000.0]
    metrics = EngineMetrics("m", clock=lambda: now[0])
    assert value(metrics, "octavo:queue_head_age_seconds") == 0
    metrics.observe(EngineOutputs(stats=EngineStats(head_since=998.0)), [])
    assert value(metrics, "octavo:queue_head_age_seconds") == 2
    now[0] += 60
    assert value(metrics, "octavo:queue_head_age_seconds") == 62, "a step that hangs shows"
    now[0] = 900  # a clock that was set back
    assert value(metrics, "octavo:queue_head_age_seconds") == 0


@pytest.mark.parametrize("seed", range(5))
def test_lengths_are_those_of_the_window(seed: int) -> None:
    rng, now = Random(seed), [0.0]
    lengths, seen = RecentLengths(lambda: now[0]), list[tuple[float, int]]()
    assert all(math.isnan(each) for each in lengths.quantiles().values())
    for _ in range(2 * WINDOW_COUNT if seed == 0 else 3000):
        now[0] += rng.expovariate(1 / (0.01 if seed == 0 else 2.0))
        seen.append((now[0], round(math.exp(rng.gauss(5, 1.5)))))
        lengths.note(seen[-1][1])
        if rng.random() < 0.002:
            counted = sorted(length for when, length in seen[-WINDOW_COUNT:] if when >= now[0] - WINDOW_SECONDS)
            for quantile, told in lengths.quantiles().items():
                assert sum(each <= told for each in counted) >= quantile * len(counted)
                assert sum(each < told for each in counted) < quantile * len(counted)
    now[0] += WINDOW_SECONDS + 1
    assert all(math.isnan(each) for each in lengths.quantiles().values())
    assert not lengths._seen


def test_lengths_of_choices_that_ended() -> None:
    metrics = EngineMetrics("m")
    times = [RequestTimes(str(i), 0, 10.0, 11.0, 12.0, 15.0, i, 2 * i, "stop") for i in range(1, 1001)]
    metrics.observe(EngineOutputs(finished=times), [])
    told = [value(metrics, "octavo:prompt_length_tokens", quantile=str(each)) for each in QUANTILES]
    assert told == [500, 900, 990, 999]
    assert value(metrics, "octavo:output_length_tokens", quantile="0.999") == 1998


def test_first_tokens_by_what_was_cached() -> None:
    metrics = EngineMetrics("m")
    shares = [0.0, 0.001, 0.499, 0.5, 0.899, 0.9, 1.0]
    metrics.observe(EngineOutputs(first_token_seconds=[1.0] * 7, cached_shares=shares), [])
    name = "octavo:time_to_first_token_seconds_count"
    assert [value(metrics, name, cached=share) for share in CACHED_SHARES] == [1, 2, 2, 2]
    assert value(metrics, "vllm:time_to_first_token_seconds_count") == 7


def test_where_the_time_of_steps_goes() -> None:
    metrics = EngineMetrics("m")
    metrics.observe(EngineOutputs(steps=[StepSeconds(1.0, 2.0, 3.0, 4.0), StepSeconds(0.1, 0.2, 0.3, 0.4)]), [])
    sums = [value(metrics, "octavo:step_time_seconds_sum", part=part) for part in STEP_PARTS]
    assert sums == pytest.approx([1.1, 2.2, 3.3, 4.4])


def test_the_parts_of_a_request() -> None:
    """In the queue for 1 s, to the first token 2 s, then 10 more tokens in 5 s; and one with a single token, and one
    that never started."""
    metrics = EngineMetrics("m")
    whole = RequestTimes("a", 0, 10.0, 11.0, 13.0, 18.0, 7, 11, "stop")
    single = RequestTimes("b", 0, 10.0, 11.0, 13.0, 13.0, 7, 1, "length")
    never = RequestTimes("c", 0, 10.0, None, None, 14.0, 7, 0, "abort")
    metrics.observe(EngineOutputs(finished=[whole, single, never]), [])
    sums = {
        "queue_time": (2.0, 2),
        "prefill_time": (4.0, 2),
        "decode_time": (5.0, 2),
        "inference_time": (9.0, 2),
        "time_per_output_token": (0.5, 1),
    }
    for name, (seconds, count) in sums.items():
        assert value(metrics, f"vllm:request_{name}_seconds_sum") == seconds
        assert value(metrics, f"vllm:request_{name}_seconds_count") == count
    assert value(metrics, "vllm:e2e_request_latency_seconds_sum") == 15.0
