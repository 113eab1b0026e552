"""Requests whose time is over end wherever they stand, are told so, and leave nothing."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from octavo.core.beam_search import BeamSearchParams
from octavo.core.invariants import check_scheduler
from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig
from octavo.core.pin_types import PinWish
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import PolicySettings, SchedulerConfig
from octavo.engine.codec import Add, decode_command, encode, read_request
from octavo.engine.deadlines import Deadlines, seconds_told
from octavo.engine.engine import Engine, EngineParts
from octavo.engine.messages import EngineRequest, OutputDelta
from tests.engine.test_engine import DEPTHS, Pieces
from tests.support.fake_runner import VOCAB_SIZE, FakeRunner, expected_output

START = 100.0


class Bench:
    """An engine with a fake runner, whose steps take a second each: step ``i`` begins at START + i."""

    def __init__(
        self,
        depth: int = 1,
        num_blocks: int = 64,
        max_num_seqs: int = 8,
        num_host_blocks: int = 32,
        policy: PolicySettings | None = None,
    ) -> None:
        cache = CacheConfig(num_blocks, 4, fingerprint=b"test", num_host_blocks=num_host_blocks)
        config = SchedulerConfig(
            max_num_seqs, 16, max_steps_in_flight=depth, preemption_mode="swap", admission_quantile=0.0
        )
        if policy is not None:
            config = replace(config, policy=policy)
        self.scheduler = Scheduler(config, KVCacheManager(cache))
        self.now = START
        self.engine = Engine(
            EngineParts(
                scheduler=self.scheduler,
                runner=FakeRunner(4),
                pieces=Pieces(),
                eos_token_ids=frozenset(),
                vocab_size=VOCAB_SIZE,
                clock=lambda: self.now,
                draw_seed=lambda: 0,
                block_bytes=1024,
            )
        )
        self.deltas: dict[str, list[OutputDelta]] = defaultdict(list)

    def add(self, request_id: str, prompt: list[int], max_tokens: int = 40, **fields: Any) -> None:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, n=fields.pop("n", 1))
        self.engine.add_request(EngineRequest(request_id, prompt, params, self.now, **fields))

    def step(self) -> None:
        for delta in self.engine.step().deltas:
            self.deltas[delta.request_id].append(delta)
        self.now += 1.0
        live = [sequence for sequences in self.engine._requests.sequences.values() for sequence in sequences]
        if not self.engine._pending:
            check_scheduler(self.scheduler, live)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        for _ in range(2000):
            if until() or not self.engine.has_work():
                return
            self.step()
        raise AssertionError("no end")

    def assert_timed_out(self, request_id: str, kind: str, num_choices: int = 1) -> list[OutputDelta]:
        """Every choice has ended so, once; the last deltas."""
        ends = [delta for delta in self.deltas[request_id] if delta.finish_reason is not None]
        assert sorted(delta.index for delta in ends) == list(range(num_choices))
        for delta in ends:
            assert (delta.finish_reason, delta.timeout, delta.invalid_param) == ("error", kind, None)
        return ends

    def assert_nothing_is_left(self) -> None:
        self.run()
        stats = self.engine.stats()
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        assert (stats.num_active_blocks, stats.num_idle_pinned_blocks) == (0, stats.num_pinned_blocks)
        assert stats.num_swapped_blocks == 0
        assert self.engine._requests.sequences == {}
        assert (
            self.engine._requests.deadlines.next_time == float("inf") or not self.engine._requests.deadlines._requests
        )

    def tokens(self, request_id: str) -> list[int]:
        return [token_id for delta in self.deltas[request_id] for token_id in delta.token_ids]


@DEPTHS
def test_one_that_waits_too_long_is_ended_and_the_others_go_on(depth: int) -> None:
    bench = Bench(depth, max_num_seqs=1)
    bench.add("runs", [1, 2, 3], 20, start_by=START + 5)
    bench.add("waits", [4, 5, 6], 5, start_by=START + 5)
    bench.add("patient", [7, 8, 9], 5, start_by=START + 500)
    bench.run(lambda: bool(bench.deltas["waits"]))
    assert bench.now == START + 6
    (end,) = bench.assert_timed_out("waits", "queue")
    assert end.error == "it has waited 5.0 s without being started and may wait 5 s"
    bench.assert_nothing_is_left()
    assert bench.tokens("runs") == expected_output([1, 2, 3], 20)
    assert bench.tokens("patient") == expected_output([7, 8, 9], 5)
    assert bench.engine.stats().timed_out == {"queue": 1}


@DEPTHS
def test_both_times_are_over_within_one_step(depth: int) -> None:
    """A long step passes the bound of the queue and that of the whole answer: the request ends once, by the first."""
    bench = Bench(depth, max_num_seqs=1)
    bench.add("runs", [1, 2, 3], 20)
    bench.add("waits", [4, 5, 6], 5, start_by=START + 4.2, end_by=START + 4.7)
    bench.add("late", [4, 5, 6], 5, start_by=START + 4.7, end_by=START + 4.2, n=2)
    bench.assert_nothing_is_left()
    bench.assert_timed_out("waits", "queue")
    bench.assert_timed_out("late", "deadline", 2)
    assert bench.tokens("runs") == expected_output([1, 2, 3], 20)
    assert bench.engine.stats().timed_out == {"queue": 1, "deadline": 1}


@DEPTHS
@pytest.mark.parametrize("seconds", [0.5, 1.5, 3.0, 10.0, 21.0])
@pytest.mark.parametrize("shape", ["plain", "choices", "beams", "pinning"])
def test_a_deadline_at_any_time(depth: int, seconds: float, shape: str) -> None:
    """A prompt of 70 tokens takes 5 steps of 16, so a deadline meets it in line, in its prompt, and after."""
    bench = Bench(depth, 256)
    prompt = list(range(70))
    fields: dict[str, Any] = {
        "plain": {},
        "choices": {"n": 3},
        "beams": {"beam_search": BeamSearchParams(3, 40, early_stopping="never")},
        "pinning": {"pins": (PinWish(64, ttl=1000.0),)},
    }[shape]
    bench.add("late", prompt, end_by=START + seconds, **fields)
    bench.add("other", [7, 8, 9], 30)
    bench.assert_nothing_is_left()
    ends = bench.assert_timed_out("late", "deadline", 3 if shape in ("choices", "beams") else 1)
    assert "is not finished after" in (ends[0].error or "")
    assert f"may take {seconds:g} s" in (ends[0].error or "")
    if shape in ("plain", "pinning"):
        got = bench.tokens("late")
        assert got == expected_output(prompt, 40)[: len(got)]
        assert len(got) <= seconds
    assert bench.tokens("other") == expected_output([7, 8, 9], 30)
    assert bench.engine.stats().timed_out == {"deadline": 1}


def test_one_that_is_swapped_out_gives_its_host_blocks_back() -> None:
    bench = Bench(num_blocks=12)
    bench.add("first", [1] * 8, 36)
    bench.add("second", [2] * 7, 36, end_by=START + 1000)
    bench.run(lambda: bench.engine.stats().num_swapped_blocks > 0)
    assert bench.engine.stats().num_swapped_blocks > 0
    bench.now = START + 1000
    bench.step()
    bench.assert_timed_out("second", "deadline")
    assert bench.engine.stats().num_swapped_blocks == 0
    bench.assert_nothing_is_left()
    assert bench.tokens("first") == expected_output([1] * 8, 36)


@DEPTHS
def test_one_whose_client_has_left_at_its_time_ended_by_it(depth: int) -> None:
    """The server tells the client at the time itself, and the engine that nobody waits any more."""
    bench = Bench(depth)
    bench.add("late", [1, 2, 3], end_by=START + 3.5, n=2)
    bench.add("left", [1, 2, 3], end_by=START + 30)
    bench.run(lambda: bench.now == START + 3)
    bench.engine.abort("left")
    bench.now = START + 3.6
    bench.engine.abort("late")
    bench.run()
    bench.assert_timed_out("late", "deadline", 2)
    assert bench.engine.stats().timed_out == {"deadline": 1}
    assert bench.engine.stats().aborted == 1
    bench.assert_nothing_is_left()


def test_one_that_ends_in_time_is_left_alone() -> None:
    bench = Bench()
    bench.add("quick", [1, 2, 3], 5, start_by=START + 1, end_by=START + 60)
    bench.run()
    bench.now = START + 100
    bench.add("quick", [1, 2, 3], 5)  # the id again, without bounds
    bench.run()
    assert bench.tokens("quick") == expected_output([1, 2, 3], 5) * 2
    assert bench.engine.stats().timed_out == {}
    bench.assert_nothing_is_left()


@pytest.mark.parametrize("seed", range(12))
def test_random_deadlines_leave_nothing_and_change_nobody(seed: int) -> None:
    """Under preemption too: every request ends once; what it got by then is what it would have got."""
    random = Random(seed)
    bench = Bench(random.choice([1, 2]), num_blocks=random.randint(20, 40), num_host_blocks=random.choice([0, 40]))
    prompts: dict[str, list[int]] = {}
    for number in range(25):
        name, prompt = str(number), random.choices(range(9), k=random.randint(1, 30))
        prompts[name] = prompt
        start_by = bench.now + random.uniform(0, 40) if random.random() < 0.4 else None
        end_by = bench.now + random.uniform(0, 60) if random.random() < 0.6 else None
        bench.add(name, prompt, random.randint(1, 30), start_by=start_by, end_by=end_by)
        for _ in range(random.randint(0, 3)):
            bench.step()
    bench.assert_nothing_is_left()
    for name, prompt in prompts.items():
        ends = [delta for delta in bench.deltas[name] if delta.finish_reason]
        assert len(ends) == 1
        assert ends[0].finish_reason in ("length", "error")
        assert (ends[0].timeout is not None) == (ends[0].finish_reason == "error")
        got = bench.tokens(name)
        assert got == expected_output(prompt, len(got))


def test_bounds_cross_to_the_engine_process() -> None:
    request = EngineRequest("a", [1], SamplingParams(), 5.0, start_by=6.5, end_by=7.5)
    command = decode_command(encode(Add(request)))
    assert isinstance(command, Add)
    assert read_request(command) == request


def test_bounds_of_ended_requests_do_not_pile_up() -> None:
    deadlines = Deadlines()
    keep = EngineRequest("keep", [1], SamplingParams(), 0.0, end_by=5.0)
    deadlines.add(keep)
    for number in range(1000):
        deadlines.add(EngineRequest(str(number), [1], SamplingParams(), 0.0, start_by=9e9, end_by=9e9))
        deadlines.remove(str(number))
    assert len(deadlines._heap) < 100
    assert deadlines.next_time == 5.0
    assert list(deadlines.take_overdue(4.0)) == []
    assert list(deadlines.take_overdue(5.0)) == [(keep, "deadline")]


def test_short_waits_are_told_in_milliseconds() -> None:
    assert [seconds_told(seconds) for seconds in (0.0234, 0.1, 61.04)] == ["0.023 s", "0.1 s", "61.0 s"]
