"""What the engine tells of itself: once a request, whatever happens to it (B59); when, and at what cost."""

import cProfile
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from octavo.core.pin_types import PinWish
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import RunnerSeconds, StepPlan, StepResult
from octavo.engine.codec import Add, ListPins, News, decode_event, encode
from octavo.engine.messages import EngineOutputs, EngineRequest, EngineStats
from octavo.engine.process import EngineProcessLoop
from octavo.engine.snapshot import LEAST_SECONDS, SHARE, SnapshotPace
from octavo.metrics.prometheus import EngineMetrics
from tests.engine.test_engine import DEPTHS, Bench
from tests.engine.test_process_loop import Wire
from tests.metrics.test_prometheus import scrape


def drive(bench: Bench, look: Callable[[EngineStats], None] = lambda stats: None) -> None:
    for _ in range(3000):
        if not bench.engine.has_work():
            return
        bench.engine.step()
        look(bench.engine.stats())
    raise AssertionError("no end")


@DEPTHS
def test_the_same_prompt_ten_times(depth: int) -> None:
    """B59 (ii): 40 tokens, nine times 39 of them cached: all but the last, which is computed again (B06)."""
    bench = Bench(depth)
    for number in range(10):
        bench.add(str(number), list(range(1, 41)), max_tokens=2)
        drive(bench)
    stats = bench.engine.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (400, 9 * 39)


@DEPTHS
def test_preempted_requests_are_no_hits(depth: int) -> None:
    """B59 (iii): prompts that share nothing; what a request finds of its own when it is resumed does not count."""
    bench = Bench(depth, num_blocks=24)
    for number in range(6):
        bench.add(str(number), list(range(number * 10, number * 10 + 12)), max_tokens=20)
    drive(bench)
    stats = bench.engine.stats()
    assert stats.num_preemptions > 0
    assert (stats.prefix_queries, stats.prefix_hits) == (72, 0)


@DEPTHS
def test_one_that_waits_is_looked_up_often_and_counts_once(depth: int) -> None:
    """B59 (iv): until the first ends there is no room for it."""
    bench = Bench(depth, num_blocks=16)
    bench.add("long", list(range(40)), max_tokens=23)
    bench.add("waits", list(range(100, 130)), max_tokens=2)
    waiting: list[EngineStats] = []
    drive(bench, look=lambda stats: waiting.append(stats) if stats.num_waiting else None)
    assert len(waiting) >= 10
    ages = [stats.head_since for stats in waiting]
    assert set(ages) == {99.0}, "the head is the same all the time, and came at 99"
    assert waiting[-1].prefix_queries == 40
    stats = bench.engine.stats()
    assert (stats.prefix_queries, stats.head_since) == (70, None)


def test_a_preempted_request_waits_since_it_was_preempted() -> None:
    bench = Bench(num_blocks=7)
    bench.add("first", list(range(8)), max_tokens=16)
    bench.add("second", list(range(50, 57)), max_tokens=12)
    seen: list[EngineStats] = []
    drive(bench, look=seen.append)
    assert bench.engine.stats().num_preemptions == 1
    since = {stats.head_since for stats in seen if stats.num_waiting and stats.num_preemptions}
    assert len(since) == 1
    assert since.pop() > 110, "not since it came, at 99"


@DEPTHS
def test_forks_and_copies(depth: int) -> None:
    """Three choices in the blocks of one prompt of 10 tokens: two begin with all of them, and copy its last block."""
    bench = Bench(depth)
    bench.add("a", list(range(10)), max_tokens=6, n=3)
    most: list[tuple[int, int]] = []
    drive(bench, look=lambda stats: most.append((stats.num_saved_blocks, stats.num_shared_blocks)))
    stats = bench.engine.stats()
    assert stats.num_forked_tokens == 20
    assert stats.copy_on_write_copies == 2
    assert max(most) >= (4, 2)


def test_every_scrape_adds_up_while_anything_happens() -> None:
    """A random load with pins, choices and aborts, and a page after every step: states add up."""
    bench, rng, metrics = Bench(num_blocks=40), Random(3), EngineMetrics("m")
    for turn in range(200):
        if rng.random() < 0.3:
            prompt = [rng.randrange(4) for _ in range(rng.randint(1, 30))]
            pins = (PinWish(len(prompt), 300.0, None),) if rng.random() < 0.2 else ()
            sampling = SamplingParams(temperature=0, max_tokens=rng.randint(1, 20), n=rng.choice([1, 1, 2]))
            bench.engine.add_request(EngineRequest(f"r{turn}", prompt, sampling, float(turn), pins=pins))
        if rng.random() < 0.05:
            bench.engine.abort(f"r{rng.randrange(turn + 1)}")
        bench.engine.step()
        metrics.observe(EngineOutputs(stats=bench.engine.stats()), [])
        page = scrape(metrics)
        blocks = {sample.labels["state"]: sample.value for sample in page["octavo:kv_blocks"].samples}
        assert blocks["free"] + blocks["cached"] + blocks["pinned"] + blocks["active"] == 40
        assert blocks["shared"] <= blocks["active"]
        assert page["vllm:kv_cache_usage_perc"].samples[0].value == (blocks["pinned"] + blocks["active"]) / 40
        assert page["octavo:kv_blocks_allocatable"].samples[0].value <= blocks["free"] + blocks["cached"]
    assert bench.engine.stats().num_preemptions > 0


@pytest.mark.parametrize("sample", [0.25, 1e6])
@DEPTHS
def test_the_time_of_a_step_is_told_in_parts(depth: int, sample: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock ticks once a reading: each part has at least one tick."""
    bench = Bench(depth)
    inner = bench.runner.submit

    def submit(plan: StepPlan) -> Any:
        pending = inner(plan)
        told = pending.result()

        class Told:
            def result(self) -> StepResult:
                fields = {name: getattr(told, name) for name in StepResult.__slots__}
                return StepResult(**fields | {"seconds": RunnerSeconds(sample, 8.0, 4.0)})

        return Told()

    monkeypatch.setattr(bench.runner, "submit", submit)
    bench.add("a", [1, 2, 3], max_tokens=4)
    steps = []
    while bench.engine.has_work():
        steps += bench.engine.step().steps
    assert len(steps) == 4
    for step in steps:
        assert min(step.plan, step.reply) > 0
        assert step.sample == sample
        # Drawing may have begun before the engine had read the step before.
        assert step.compute > 0 if sample < 1 else step.compute == 0
    assert bench.engine.stats().swap_out_seconds == 0, "nothing was swapped in these steps"


def test_when_snapshots_are_taken() -> None:
    now, cost = [0.0], [0.0]

    def stats() -> EngineStats:
        now[0] += cost[0]
        return EngineStats()

    pace = SnapshotPace(lambda: now[0])
    assert pace.is_due()
    pace.take(stats)
    assert not pace.is_due()
    now[0] = LEAST_SECONDS
    assert pace.is_due()
    cost[0] = 0.01
    pace.take(stats)
    now[0] = LEAST_SECONDS + SHARE * cost[0] - 0.001
    assert not pace.is_due(), "one that takes long is seldom"
    pace.hasten()
    assert pace.is_due()


class Pages(Wire):
    """What the server is told, in order."""

    def __init__(self) -> None:
        super().__init__([])
        self.news: list[EngineOutputs] = []

    def send(self, data: bytes, _flags: int) -> None:
        event = decode_event(data)
        assert isinstance(event, News)
        self.news.append(event.outputs)


def loop_of(bench: Bench) -> tuple[EngineProcessLoop, Any]:
    wire: Any = Pages()
    return EngineProcessLoop(bench.engine, wire, wire, log_stats=False), wire


def test_what_is_told_last_is_how_things_are_when_nothing_runs() -> None:
    """With the very message that ends the last request: its client may look at once. Few steps have a snapshot."""
    bench = Bench()
    loop, wire = loop_of(bench)
    for number in range(4):
        wire.incoming.append(
            encode(Add(EngineRequest(str(number), [1, 2, 3], SamplingParams(temperature=0, max_tokens=30), 1.0)))
        )
    loop._drain_commands()
    while bench.engine.has_work():
        loop._step()
        loop._flush()
    last = wire.news[-1]
    assert {delta.finish_reason for delta in last.deltas} == {"length"}
    assert last.stats is not None
    assert (last.stats.num_running, last.stats.num_active_blocks, last.stats.generation_tokens) == (0, 0, 120)
    num_steps = sum(len(news.steps) for news in wire.news)
    assert num_steps >= 30
    assert sum(news.stats is not None for news in wire.news) < num_steps


def test_pins_are_told_with_the_figures_of_that_moment() -> None:
    bench = Bench()
    loop, wire = loop_of(bench)
    pinned = EngineRequest(
        "a", list(range(8)), SamplingParams(temperature=0, max_tokens=3), 1.0, pins=(PinWish(8, None, None),)
    )
    endless = EngineRequest("b", [1], SamplingParams(temperature=0, max_tokens=200), 1.0)
    wire.incoming += [encode(Add(pinned)), encode(Add(endless))]
    for _ in range(6):
        loop._drain_commands()
        loop._step()
        loop._flush()
    wire.incoming.append(encode(ListPins(1)))
    loop._drain_commands()
    loop._step()
    loop._flush()
    (told,) = [news for news in wire.news if news.pin_lists]
    assert told.stats is not None
    assert told.stats.num_pinned_blocks == sum(pin.num_blocks for pin in told.pin_lists[0].pins) == 2


def calls_in(profile: cProfile.Profile, is_counted: Callable[[str, str], bool]) -> int:
    """Of Octavo's functions, by file and name."""
    entries = [entry for entry in profile.getstats() if hasattr(entry.code, "co_filename")]
    return sum(entry.callcount for entry in entries if is_counted(entry.code.co_filename, entry.code.co_name))


@pytest.mark.parametrize("num_running", [1, 8])
def test_a_step_pays_one_call_in_fifty_for_figures(num_running: int) -> None:
    """Those of a hundred turns of the loop; a snapshot is due every few steps at most, as is tested above."""
    bench = Bench(num_blocks=4000)
    loop, _ = loop_of(bench)
    for number in range(num_running):
        sampling = SamplingParams(temperature=0, max_tokens=3000)
        bench.engine.add_request(EngineRequest(str(number), [number + 1] * 9, sampling, 1.0))
    loop._step()
    loop._pace._next = float("inf")
    profile = cProfile.Profile()
    with profile:
        for _ in range(100):
            loop._step()
            loop._flush()
    made_for_figures = ("engine/snapshot.py", "core/block_states.py", "octavo/metrics/")
    figures = calls_in(profile, lambda file, name: any(part in file for part in made_for_figures))
    steps = calls_in(profile, lambda file, name: "/octavo/" in file)
    assert figures == 100, "is a snapshot due?"
    assert figures <= steps / 50
