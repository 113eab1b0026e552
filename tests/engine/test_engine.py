"""The engine loop with the fake runner: what clients are told, and when."""

from collections import defaultdict
from collections.abc import Callable
from itertools import count

import pytest

from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import SchedulerConfig
from octavo.core.speculation import Speculation
from octavo.core.step import StepPlan
from octavo.engine.engine import Engine, EngineParts
from octavo.engine.messages import EngineOutputs, EngineRequest, EngineStats, OutputDelta
from tests.support.fake_runner import VOCAB_SIZE, FakeRunner, expected_output

DEPTHS = pytest.mark.parametrize("depth", [1, 2])


class Pieces:
    """Token i is spelled "<i>"."""

    special_token_ids = frozenset[int]()

    def token_bytes(self, token_id: int) -> bytes:
        return f"<{token_id}>".encode()


class Bench:
    """An engine with a fake runner and a clock that ticks once a reading."""

    def __init__(
        self,
        depth: int = 1,
        num_blocks: int = 64,
        eos: frozenset[int] = frozenset(),
        speculation: Speculation | None = None,
    ) -> None:
        cache = CacheConfig(num_blocks, 4, 1, True, b"test")
        config = SchedulerConfig(
            max_num_seqs=8, max_num_batched_tokens=16, max_steps_in_flight=depth, admission_quantile=0.0
        )
        self.scheduler = Scheduler(config, KVCacheManager(cache), speculation)
        self.runner = FakeRunner(4)
        ticks, seeds = count(100), count()
        self.engine = Engine(
            EngineParts(
                scheduler=self.scheduler,
                runner=self.runner,
                pieces=Pieces(),
                eos_token_ids=eos,
                vocab_size=VOCAB_SIZE,
                clock=lambda: float(next(ticks)),
                draw_seed=lambda: next(seeds),
                block_bytes=1024,
            )
        )
        self.deltas: dict[tuple[str, int], list[OutputDelta]] = defaultdict(list)
        self.outputs: list[EngineOutputs] = []
        self.stats: list[EngineStats] = []
        """One of each step."""

    def add(self, request_id: str, prompt: list[int], clamp: bool = False, **params: object) -> None:
        sampling = SamplingParams(temperature=0, **params)  # type: ignore[arg-type]
        self.engine.add_request(EngineRequest(request_id, prompt, sampling, 99.0, clamp_max_tokens=clamp))

    def run(self, each_step: Callable[[int], None] = lambda step: None) -> None:
        for step in range(2000):
            if not self.engine.has_work():
                break
            each_step(step)
            outputs = self.engine.step()
            self.outputs.append(outputs)
            self.stats.append(self.engine.stats())
            for delta in outputs.deltas:
                self.deltas[delta.request_id, delta.index].append(delta)
        assert not self.engine.has_work()
        stats = self.engine.stats()
        assert stats.num_active_blocks == stats.num_running == stats.num_waiting == 0

    def tokens(self, request_id: str, index: int = 0) -> list[int]:
        return [token for delta in self.deltas[request_id, index] for token in delta.token_ids]

    def text(self, request_id: str, index: int = 0) -> str:
        return "".join(delta.text for delta in self.deltas[request_id, index])

    def end(self, request_id: str, index: int = 0) -> OutputDelta:
        finals = [delta for delta in self.deltas[request_id, index] if delta.finish_reason is not None]
        assert finals == self.deltas[request_id, index][-1:], "finish_reason comes once, in the last delta"
        return finals[0]


def spelled(tokens: list[int]) -> str:
    return "".join(f"<{token}>" for token in tokens)


@DEPTHS
def test_deltas_join_to_the_whole_answer(depth: int) -> None:
    bench = Bench(depth)
    bench.add("a", [1, 2, 3], max_tokens=10)
    bench.add("b", [4, 5], max_tokens=7)
    bench.run()
    for name, prompt, length in (("a", [1, 2, 3], 10), ("b", [4, 5], 7)):
        expected = expected_output(prompt, length)
        assert bench.tokens(name) == expected
        assert bench.text(name) == spelled(expected)
        assert bench.end(name).finish_reason == "length"


@DEPTHS
def test_stop_string_over_several_tokens_is_never_seen(depth: int) -> None:
    bench = Bench(depth)
    expected = expected_output([1, 2, 3], 6)
    stop = f"{expected[3]}><{expected[4]}"
    bench.add("a", [1, 2, 3], max_tokens=30, stop=stop)
    bench.run()
    assert bench.text("a") == spelled(expected[:3]) + "<"
    end = bench.end("a")
    assert (end.finish_reason, end.stop_reason) == ("stop", stop)
    assert bench.tokens("a") == expected[:5]


@DEPTHS
def test_eos_and_stop_ids(depth: int) -> None:
    expected = expected_output([1, 2, 3], 8)
    bench = Bench(depth, eos=frozenset([expected[5]]))
    bench.add("eos", [1, 2, 3], max_tokens=30)
    bench.add("id", [1, 2, 3], max_tokens=30, stop_token_ids=[expected[2]])
    bench.add("shown", [1, 2, 3], max_tokens=30, stop_token_ids=[expected[2]], include_stop_str_in_output=True)
    bench.add("ignored", [1, 2, 3], max_tokens=8, ignore_eos=True)
    bench.add("last", [1, 2, 3], max_tokens=6)
    bench.run()
    assert bench.tokens("eos") == expected[:6]
    assert bench.text("eos") == spelled(expected[:5])
    assert (bench.end("eos").finish_reason, bench.end("eos").stop_reason) == ("stop", None)
    assert bench.text("id") == spelled(expected[:2])
    assert (bench.end("id").finish_reason, bench.end("id").stop_reason) == ("stop", expected[2])
    assert bench.text("shown") == spelled(expected[:3])
    assert bench.tokens("ignored") == expected
    assert bench.end("last").finish_reason == "stop", "D11: EOS as the last allowed token"


@DEPTHS
def test_n_choices_end_one_by_one(depth: int) -> None:
    bench = Bench(depth)
    bench.add("a", [1, 2, 3, 4, 5], max_tokens=4, n=3)
    bench.run()
    for index in range(3):
        assert bench.tokens("a", index) == expected_output([1, 2, 3, 4, 5], 4)
        assert bench.end("a", index).finish_reason == "length"
    assert bench.engine.stats().prompt_tokens == 5
    assert bench.engine.stats().generation_tokens == 12


@DEPTHS
def test_abort_at_any_step(depth: int) -> None:
    for when in range(12):
        bench = Bench(depth, num_blocks=12)
        bench.add("kept", list(range(20)), max_tokens=8)
        bench.add("gone", list(range(30, 50)), max_tokens=8, n=2)

        def abort(step: int, bench: Bench = bench, when: int = when) -> None:
            if step == when:
                bench.engine.abort("gone")

        bench.run(abort)
        assert bench.tokens("kept") == expected_output(list(range(20)), 8)
        ends = {bench.end("gone", index).finish_reason for index in range(2)}
        assert ends <= {"abort", "length"}
    assert bench.engine.abort("unknown") is None


@DEPTHS
def test_a_request_that_fails_alone_gets_an_error_and_nobody_else(depth: int) -> None:
    bench = Bench(depth)
    for i in range(4):
        bench.add(str(i), [i, i + 1], max_tokens=6)

    def fails(plan: StepPlan) -> None:
        bad = [row for row in plan.row_ids if bench.runner.rows[row].tokens[:2] == [2, 3]]
        if bad and len(bench.runner.rows[bad[0]].tokens) > 4:
            raise RuntimeError("the card is on fire")

    bench.runner.fails = fails
    bench.run()
    end = bench.end("2")
    assert end.finish_reason == "error"
    assert end.error is not None
    assert "the card is on fire" in end.error
    for i in (0, 1, 3):
        assert bench.tokens(str(i)) == expected_output([i, i + 1], 6)
    assert bench.engine.stats().failed == 1


def test_the_door() -> None:
    bench = Bench(num_blocks=16)
    refused = {
        "long": ([1] * 80, {"max_tokens": 1}, "prompt", "64"),
        "both": ([1] * 50, {"max_tokens": 100}, "max_tokens", "150"),
        "empty": ([], {"max_tokens": 1}, "prompt", "empty"),
        "id": ([1, VOCAB_SIZE], {"max_tokens": 1}, "prompt", str(VOCAB_SIZE)),
        "negative": ([1, -1], {"max_tokens": 1}, "prompt", "-1"),
        "real": ([1, 2.5], {"max_tokens": 1}, "prompt", "whole"),
        "stop id": ([1], {"max_tokens": 1, "stop_token_ids": [5000]}, "stop_token_ids", "5000"),
        "bias": ([1], {"max_tokens": 1, "logit_bias": {5000: 1.0}}, "logit_bias", "5000"),
        "allowed": ([1], {"max_tokens": 1, "allowed_token_ids": [5000]}, "allowed_token_ids", "5000"),
    }
    for name, (prompt, params, _, _) in refused.items():
        bench.add(name, prompt, **params)
    bench.add("good", [7, 8], max_tokens=3)
    bench.run()
    for name, (_, _, param, number) in refused.items():
        end = bench.end(name)
        assert (end.finish_reason, end.invalid_param) == ("error", param), name
        assert number in (end.error or ""), name
        assert end.invalid_code == ("context_length_exceeded" if name in ("long", "both") else "invalid_request"), name
    assert bench.tokens("good") == expected_output([7, 8], 3)
    assert sum(bench.engine.stats().rejected.values()) == len(refused)


@pytest.mark.parametrize("salt", ["", "a" * 1025, "half a pair: \ud800"])
def test_a_salt_that_cannot_be_used_is_refused(salt: str) -> None:
    bench = Bench()
    bench.engine.add_request(EngineRequest("a", [1, 2], SamplingParams(), 99.0, cache_salt=salt))
    bench.run()
    assert bench.end("a").invalid_param == "cache_salt"


def test_the_client_and_the_metrics_are_told_the_same_end() -> None:
    """A longer stop string that begins first is open until the last token; only then the shorter one is found."""
    bench = Bench()
    _, second, third = expected_output([1, 2, 3], 3)
    bench.add("a", [1, 2, 3], max_tokens=3, stop=[f"<{second}><{third}>!", f"<{third}>"])
    bench.run()
    assert (bench.end("a").finish_reason, bench.end("a").stop_reason) == ("stop", f"<{third}>")
    (times,) = [times for outputs in bench.outputs for times in outputs.finished]
    assert times.finish_reason == "stop"


def test_defaults_are_clamped_to_the_room_left_and_wishes_are_not() -> None:
    bench = Bench(num_blocks=16)
    bench.add("default", [1] * 60, clamp=True, max_tokens=16)
    bench.add("open", [2] * 50, max_tokens=None)
    bench.add("wish", [3] * 60, max_tokens=16)
    bench.run()
    assert len(bench.tokens("default")) == 4
    assert len(bench.tokens("open")) == 14
    assert bench.end("wish").finish_reason == "error"


def test_a_request_id_in_use_is_refused_and_the_first_goes_on() -> None:
    bench = Bench()
    bench.add("a", [1, 2], max_tokens=5)
    bench.engine.step()
    bench.add("a", [3, 4], max_tokens=5)
    news = bench.engine.step()
    refused = [delta for delta in news.deltas if delta.error]
    assert [delta.invalid_param for delta in refused] == ["request_id"]


def test_times_and_intervals() -> None:
    bench = Bench()
    bench.add("a", [1, 2, 3], max_tokens=4)
    bench.run()
    (times,) = [times for outputs in bench.outputs for times in outputs.finished]
    assert times.scheduled is not None
    assert times.first_token is not None
    assert times.arrival < times.scheduled < times.first_token < times.finished
    assert (times.num_prompt_tokens, times.num_generation_tokens, times.finish_reason) == (3, 4, "length")
    intervals = [seconds for outputs in bench.outputs for seconds in outputs.token_intervals]
    assert len(intervals) == 3
    assert all(seconds > 0 for seconds in intervals)
    assert len([s for outputs in bench.outputs for s in outputs.first_token_seconds]) == 1


def test_the_pool_adds_up_in_every_snapshot() -> None:
    bench = Bench(num_blocks=24)
    for i in range(6):
        bench.add(str(i), list(range(i * 10, i * 10 + 12)), max_tokens=20)
    bench.run()
    for stats in bench.stats:
        assert stats.num_free_blocks + stats.num_cached_blocks + stats.num_active_blocks == stats.num_blocks == 24
    assert bench.engine.stats().num_preemptions > 0


def test_limits_name_what_binds() -> None:
    assert Bench(num_blocks=16).engine.limits.bound_by == "what the KV pool holds"
    assert Bench(num_blocks=2000).engine.limits.bound_by == "max_model_len"


@DEPTHS
def test_requests_start_once_when_their_first_step_is_planned(depth: int) -> None:
    """Eight sequences run at a time: the ninth request waits, however long the prompts of the others take."""
    bench = Bench(depth)
    for number in range(8):
        bench.add(str(number), [number + 1] * 5, max_tokens=4)
    bench.add("last", [9] * 5, max_tokens=4, n=2)
    started: list[str] = []
    bench.engine.step(started.extend)
    assert started
    assert "last" not in started
    while bench.engine.has_work():
        bench.engine.step(started.extend)
    assert sorted(started) == [*map(str, range(8)), "last"]


def test_what_ends_while_it_waits_never_starts() -> None:
    bench = Bench()
    bench.add("a", [1, 2, 3], max_tokens=4)
    bench.engine.abort("a")
    bench.add("a", [1, 2, 3], max_tokens=4)
    started: list[str] = []
    while bench.engine.has_work():
        bench.engine.step(started.extend)
    assert started == ["a"]
