"""What the engine adds to preemption: it measures what computing costs, says who was preempted, and counts it."""

import logging
from collections.abc import Iterator
from itertools import repeat

import pytest

from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import PreemptionMode, SchedulerConfig
from octavo.core.step_times import MIN_MEASURED_TOKENS
from octavo.engine.engine import Engine, EngineParts
from octavo.engine.messages import EngineRequest
from tests.engine.test_engine import Pieces
from tests.support.fake_runner import VOCAB_SIZE, FakeRunner


class Clock:
    """Goes on by ``step`` seconds with each reading."""

    def __init__(self) -> None:
        self.now = 100.0
        self.step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def _engine(cache: CacheConfig, mode: PreemptionMode, clock: Clock) -> tuple[Engine, Scheduler]:
    seeds: Iterator[int] = repeat(0)
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=128, preemption_mode=mode, admission_quantile=0.0)
    scheduler = Scheduler(config, KVCacheManager(cache))
    runner = FakeRunner(cache.block_size)
    parts = EngineParts(scheduler, runner, Pieces(), frozenset(), VOCAB_SIZE, clock, lambda: next(seeds), 1024)
    return Engine(parts), scheduler


def _add(engine: Engine, name: str, prompt: list[int], max_tokens: int) -> None:
    engine.add_request(EngineRequest(name, prompt, SamplingParams(temperature=0, max_tokens=max_tokens), 99.0))


def test_the_cost_of_a_token_is_measured_on_prompts() -> None:
    """128 and 72 prompt tokens, 2 seconds each (two readings of the clock apart); a step of few tokens says nothing."""
    clock = Clock()
    engine, scheduler = _engine(CacheConfig(100, 4, enable_prefix_caching=False), "auto", clock)
    costs = scheduler.population.costs
    _add(engine, "short", [1] * (MIN_MEASURED_TOKENS - 1), 1)
    clock.step = 2.0
    engine.step()
    assert costs.seconds_per_token is None
    _add(engine, "long", [2] * 200, 3)
    engine.step()
    assert costs.seconds_per_token == 2.0 / 128
    engine.step()
    assert costs.seconds_per_token == pytest.approx(2.0 / 128 * 7 / 8 + 2.0 / 72 / 8)
    measured = costs.seconds_per_token
    engine.step()
    assert costs.seconds_per_token == measured


@pytest.mark.parametrize(("mode", "num_host_blocks"), [("swap", 100), ("swap", 0), ("recompute", 100)])
def test_every_preemption_is_logged_and_counted(
    mode: PreemptionMode, num_host_blocks: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The second request has computed 11 tokens, in 3 blocks, when the first needs a block."""
    caplog.set_level(logging.INFO)
    cache = CacheConfig(6, 4, enable_prefix_caching=False, num_host_blocks=num_host_blocks)
    engine, _ = _engine(cache, mode, Clock())
    _add(engine, "first", [1] * 8, 12)
    _add(engine, "second", [2] * 7, 12)
    most_swapped = 0
    while engine.has_work():
        engine.step()
        stats = engine.stats()
        assert 0 <= stats.num_swapped_blocks <= stats.num_host_blocks - stats.num_host_cached_blocks
        most_swapped = max(most_swapped, stats.num_swapped_blocks)
    num_swapped, num_lost = (11, 0) if mode == "swap" and num_host_blocks else (0, 11)
    (line,) = [record.message for record in caplog.records if record.message.startswith("preempted")]
    told = f"{num_swapped} tokens swapped out, {num_lost} tokens to compute again"
    assert line == f"preempted request second/0: 3 blocks freed, {told}"
    stats = engine.stats()
    assert stats.num_preemptions == 1
    assert stats.num_swaps == (num_swapped > 0)
    assert stats.num_preempted_tokens == num_lost
    assert stats.swapped_out_blocks == stats.swapped_in_blocks == most_swapped == (3 if num_swapped else 0)
    assert stats.block_bytes == 1024
    assert stats.num_swapped_blocks == 0


def test_the_host_pool_adds_up_in_every_snapshot() -> None:
    """Swapped sequences and evicted prefixes side by side: free + cached + swapped is all there is."""
    cache = CacheConfig(6, 4, num_host_blocks=5, keep_evicted=True)
    engine, scheduler = _engine(cache, "swap", Clock())
    for number in range(6):
        _add(engine, f"r{number}", [number] * (6 + number % 3), 9)
    seen_cached = seen_swapped = 0
    while engine.has_work():
        engine.step()
        stats, pool = engine.stats(), scheduler.kv.host.pool
        num_free = stats.num_host_blocks - stats.num_host_cached_blocks - stats.num_swapped_blocks
        assert num_free == pool.num_free - pool.num_cached
        waiting = [request for request in scheduler.waiting if request.swapped]
        held = sum(len(ids) for request in waiting if request.swapped for ids in request.swapped.host_ids)
        assert stats.num_swapped_blocks == held
        seen_cached, seen_swapped = max(seen_cached, stats.num_host_cached_blocks), max(seen_swapped, held)
    assert seen_cached > 0
    assert seen_swapped > 0
