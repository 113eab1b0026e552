"""What crosses between the processes, and how it is merged when nobody reads."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.pin_types import PinInfo, PinReport, PinWish
from octavo.core.retention import Retention
from octavo.core.sampling_params import SamplingLimits, SamplingParams
from octavo.core.step import TokenLogprobs
from octavo.engine.coalesce import Outbox
from octavo.engine.codec import Add, News, Ready, decode_command, decode_event, encode, read_request
from octavo.engine.interface import EngineLimits
from octavo.engine.messages import (
    EngineOutputs,
    EngineRequest,
    EngineStats,
    OutputDelta,
    PinList,
    RequestTimes,
    StepSeconds,
    TraceList,
)
from octavo.engine.stats_log import StatsLog, format_stats
from octavo.engine.traces import RequestEvent, RequestFacts, RequestTrace


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"stop": "a", "temperature": 0, "seed": 2**63 - 1},
        {
            "stop": ["a", "b"],
            "logit_bias": {5: -1.5},
            "stop_token_ids": [1],
            "allowed_token_ids": [2],
            "bad_words": ["x"],
        },
        {"n": 100, "limits": SamplingLimits(n=100)},
    ],
    ids=str,
)
def test_requests_cross_unchanged(params: dict[str, Any]) -> None:
    request = EngineRequest("id", [1, 2, 3], SamplingParams(**params), 12.5, True, -4, "salt")
    kept = replace(request, pins=(PinWish(3, 1.5, 80, is_required=False),), retention=Retention(90, 2.5))
    for sent in (request, kept):
        command = decode_command(encode(Add(sent)))
        assert isinstance(command, Add)
        assert read_request(command) == sent


def test_outputs_cross_unchanged() -> None:
    entry = TokenLogprobs(5, -math.inf, 9, ((1, -0.5), (2, -math.inf)))
    report = PinReport([PinInfo("pin-0", 32, 2, 5.5, 80, "salt")], ["why not"])
    delta = OutputDelta("id", 1, "é", [5], [entry], [None, entry], "stop", "end", 3, -0.5, "why", "", report, "queue")
    delta.invalid_code = "context_length_exceeded"
    times = RequestTimes("r", 0, 1.0, None, 2.0, 3.0, 4, 5, "stop")
    outputs = EngineOutputs([delta], EngineStats(num_running=1, rejected={"a": 1}), [times], [0.1], [0.9], [0.2])
    outputs.steps, outputs.iteration_tokens = [StepSeconds(0.1, 0.2, 0.3, 0.4)], 7
    outputs.pin_lists = [PinList(1, report.pins, was_found=True)]
    event = RequestEvent(1.5, 3, 0, "preempted", (1, 2, 3), "why")
    facts = RequestFacts(1.0, 5, 2, "t", -3, None, 9.5)
    outputs.trace_lists = [TraceList(2, [RequestTrace("id", facts, [event], 0, ["waiting"], 0, "", {"ahead": 3})])]
    assert decode_event(encode(News(outputs, [7]))) == News(outputs, [7])
    ready = Ready(EngineLimits(1, 2, 3, 4))
    assert decode_event(encode(ready)) == ready


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.text(max_size=3)), max_size=30))
def test_merging_loses_nothing(news: list[tuple[str, int, str]]) -> None:
    box = Outbox()
    expected: dict[tuple[str, int], str] = {}
    for count, (request_id, index, text) in enumerate(news):
        entry = TokenLogprobs(count, -1.0, 1, ())
        delta = OutputDelta(request_id, index, text, [count], [entry], num_cached_tokens=count)
        step = StepSeconds(0.1, 0.2, 0.3, 0.4)
        news_of_step = EngineOutputs([delta], EngineStats(num_steps=count), token_intervals=[0.5], steps=[step])
        news_of_step.iteration_tokens = count
        box.put(news_of_step)
        expected[request_id, index] = expected.get((request_id, index), "") + text
    assert bool(box) == bool(news)
    outputs, iterations = box.peek()
    assert {(delta.request_id, delta.index): delta.text for delta in outputs.deltas} == expected
    assert sorted(sum((delta.token_ids for delta in outputs.deltas), [])) == list(range(len(news)))
    assert all([entry.token_id for entry in delta.logprobs or []] == delta.token_ids for delta in outputs.deltas)
    assert outputs.token_intervals == [0.5] * len(news)
    assert len(outputs.steps) == len(news)
    assert iterations == [count for count in range(len(news)) if count]
    if news:
        assert outputs.stats == EngineStats(num_steps=len(news) - 1)
    box.clear()
    assert not box
    assert box.peek() == (EngineOutputs(), [])


def test_the_end_survives_merging() -> None:
    box = Outbox()
    box.put(EngineOutputs([OutputDelta("a", 0, "x", prompt_logprobs=[None])]))
    box.put(EngineOutputs([OutputDelta("a", 0, "y", finish_reason="stop", stop_reason=5)]))
    (delta,) = box.peek()[0].deltas
    assert (delta.text, delta.finish_reason, delta.stop_reason, delta.prompt_logprobs) == ("xy", "stop", 5, [None])


def test_the_end_of_a_search_survives_merging() -> None:
    box = Outbox()
    box.put(EngineOutputs([OutputDelta("a", 0)]))
    box.put(EngineOutputs([OutputDelta("a", 0, "y", [5], finish_reason="stop", cumulative_logprob=-1.5)]))
    (delta,) = box.peek()[0].deltas
    assert (delta.token_ids, delta.cumulative_logprob) == ([5], -1.5)


def test_the_line_that_people_grep_for() -> None:
    before = EngineStats(prompt_tokens=100, generation_tokens=50, prefix_queries=40, prefix_hits=40)
    now = EngineStats(
        num_running=3, num_waiting=2, num_blocks=24, num_active_blocks=6,
        prompt_tokens=300, generation_tokens=75, prefix_queries=80, prefix_hits=50,
    )  # fmt: skip
    assert format_stats(now, before, 10.0) == (
        "Avg prompt throughput: 20.0 tokens/s, Avg generation throughput: 2.5 tokens/s, Running: 3 reqs, "
        "Waiting: 2 reqs, KV cache usage: 25.0%, Prefix cache hit rate: 25.0%"
    )
    assert format_stats(EngineStats(), EngineStats(), 10.0).endswith(
        "KV cache usage: 0.0%, Prefix cache hit rate: 0.0%"
    )


def test_the_line_comes_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    times = iter([0.0, 9.9, 10.0, 20.0, 29.0])
    log = StatsLog(lambda: next(times))
    assert not log.due()
    assert log.due()
    log.write(EngineStats(generation_tokens=40))
    assert "Avg generation throughput: 2.0 tokens/s" in caplog.text
    assert not log.due()
