"""What was decided about a request can be seen afterwards; and the log of it is bounded."""

import cProfile
from typing import Any

import pytest

from octavo.core.beam_search import BeamSearchParams
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler_types import PolicyName, PolicySettings, SchedulerConfig, SkipBounds
from octavo.engine.codec import ListTraces, decode_command, encode
from octavo.engine.messages import EngineRequest
from octavo.engine.traces import (
    EVENT_NUMBERS,
    MAX_FIRST_EVENTS,
    MAX_LAST_EVENTS,
    EventLog,
    FlatEvent,
    RequestEvent,
    RequestFacts,
    RequestTrace,
)
from tests.engine.test_deadlines import START, Bench
from tests.engine.test_engine import DEPTHS


def trace(bench: Bench, request_id: str) -> RequestTrace:
    (found,) = bench.engine.traces([request_id], 0)
    return found


def told(bench: Bench, request_id: str) -> list[tuple[Any, ...]]:
    """(kind, choice, numbers), oldest first."""
    events = trace(bench, request_id).events
    assert [event.time for event in events] == sorted(event.time for event in events)
    for event in events:
        assert len(event.numbers) == len(EVENT_NUMBERS[event.kind])
    return [(event.kind, event.choice, *event.numbers) for event in events]


def test_a_plain_request() -> None:
    bench = Bench()
    bench.add("a", [1, 2, 3], 5)
    bench.run()
    assert told(bench, "a") == [
        ("arrived", 0, 3, 1),
        ("admitted", 0, 0, 3),
        ("first_token", 0),
        ("finished", 0, 5, 0),
    ]
    found = trace(bench, "a")
    assert (found.statuses, found.reason, found.num_generated_tokens, found.num_dropped) == ([], "length", 5, 0)
    assert [event.time - START for event in found.events] == [0, 0, 0, 4]
    assert [event.step for event in found.events] == [0, 0, 1, 5]


def test_a_long_prompt_beside_others_comes_in_chunks_and_the_cached_part_is_told() -> None:
    bench = Bench()
    bench.add("a", list(range(40)), 5)
    bench.run(lambda: bench.engine.stats().num_steps == 1)
    found = trace(bench, "a")
    assert (found.statuses, found.num_generated_tokens) == (["running"], 0)
    bench.run()
    assert told(bench, "a")[1:4] == [("admitted", 0, 0, 16), ("chunk", 0, 16, 16), ("chunk", 0, 32, 8)]
    bench.add("b", list(range(30)), 2)
    bench.run()
    assert told(bench, "b")[1] == ("admitted", 0, 29, 1)


@DEPTHS
def test_choices_fork_and_end_one_by_one(depth: int) -> None:
    bench = Bench(depth)
    bench.add("a", [1, 2, 3, 4, 5, 6], 4, n=3)
    bench.run()
    events = told(bench, "a")
    assert events[:4] == [
        ("arrived", 0, 6, 3),
        ("admitted", 0, 0, 6),
        ("forked", 1, 6),
        ("forked", 2, 6),
    ]
    assert sorted(events[4:]) == [
        *(("finished", choice, 4, 0) for choice in range(3)),
        *(("first_token", choice) for choice in range(3)),
    ]


def test_beams_are_admitted_once() -> None:
    """That beams take over each other's rows, at every step, is no decision."""
    bench = Bench()
    bench.add("a", [1, 2, 3], 12, beam_search=BeamSearchParams(3, 12, early_stopping="never"))
    bench.run()
    kinds = [event[0] for event in told(bench, "a")]
    assert kinds == ["arrived", "admitted", "forked", "forked", "finished", "finished", "finished"]


@pytest.mark.parametrize("num_host_blocks", [32, 0])
def test_a_preemption_says_why_and_what_came_of_it(num_host_blocks: int) -> None:
    bench = Bench(num_blocks=12, num_host_blocks=num_host_blocks)
    bench.add("first", [1] * 8, 36)
    bench.add("second", [2] * 7, 36)
    bench.run()
    events = trace(bench, "second").events
    kinds = [event.kind for event in events]
    assert kinds[-1] == "finished"
    (preempted,) = [event for event in events if event.kind == "preempted"]
    (resumed,) = [event for event in events if event.kind == "resumed"]
    freed, swapped, lost = preempted.numbers
    assert preempted.note == "first/0 lacked blocks to go on"
    assert freed > 0
    assert (swapped > 0) == (num_host_blocks > 0)
    assert lost == 0 or not num_host_blocks
    assert resumed.step > preempted.step
    assert events[-1].numbers == (36, 1)
    assert "preempted" not in [event.kind for event in trace(bench, "first").events]


def test_one_that_waits_for_anothers_prefix_says_so() -> None:
    bench = Bench()
    prompt = list(range(60))
    bench.add("first", prompt, 3)
    bench.add("second", prompt, 3)
    bench.run()
    kinds = [event[0] for event in told(bench, "second")]
    assert kinds == ["arrived", "waits_for_prefix", "admitted", "first_token", "finished"]
    assert told(bench, "second")[2] == ("admitted", 0, 59, 1)


def test_one_that_is_passed_says_by_how_many() -> None:
    bench = Bench(num_blocks=40)
    assert isinstance(bench.scheduler.config, SchedulerConfig)
    assert bench.scheduler.config.head_skips == SkipBounds()
    bench.add("runs", [1] * 60, 40)
    bench.run(lambda: bench.engine.stats().num_running == 1)
    bench.add("large", [2] * 120, 4)
    bench.add("small", [3] * 4, 4)
    bench.add("tiny", [4] * 3, 4)
    bench.run()
    passed = [event for event in told(bench, "large") if event[0] == "passed"]
    assert [event[2] for event in passed] in ([2], [1, 1])
    assert passed[-1][3] == 2
    assert not [event for event in told(bench, "small") if event[0] == "passed"]


def test_what_is_refused_aborted_or_late_says_why() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add("refused", [1] * 300, 5)
    bench.add("runs", [1, 2], 30)
    bench.add("aborted", [1, 2], 3)
    bench.add("late", [1, 2], 3, start_by=START + 4)
    bench.step()
    bench.engine.abort("aborted")
    bench.run()
    refused = trace(bench, "refused")
    assert [event.kind for event in refused.events] == ["arrived", "refused"]
    assert "300 in the prompt" in refused.events[-1].note
    assert refused.reason == "error"
    aborted = trace(bench, "aborted").events[-1]
    assert (aborted.kind, aborted.note, aborted.numbers) == ("finished", "abort", (0, 0))
    late = trace(bench, "late").events
    assert [event.kind for event in late] == ["arrived", "timed_out", "finished"]
    assert "may wait 4 s" in late[1].note


def test_decoding_writes_nothing() -> None:
    bench = Bench()
    for number in range(4):
        bench.add(str(number), [number], 50)
    bench.step()
    bench.step()
    num_events = [len(told(bench, str(number))) for number in range(4)]
    for _ in range(40):
        bench.step()
    assert [len(told(bench, str(number))) for number in range(4)] == num_events


def test_the_latest_come_first() -> None:
    bench = Bench()
    for number in range(5):
        bench.add(str(number), [number], 3)
    bench.run()
    assert [found.request_id for found in bench.engine.traces(None, 3)] == ["4", "3", "2"]
    assert bench.engine.traces(["nobody"], 9) == []


def test_who_asks_and_what_counts_for_it() -> None:
    """Facts stay; the standing is of what is open, by policy."""
    shown: dict[PolicyName, dict[str, float]] = {
        "fcfs": {"passed_by": 0, "ahead": 1},
        "priority": {"passed_by": 0, "ahead": 1, "aged_priority": 4.5},
        "fair": {"passed_by": 0, "ahead": 0, "tenant_service": 5.0, "tenant_ahead": 0.0},  # lifted to that of a
    }
    for name, standing in shown.items():
        bench = Bench(max_num_seqs=1, policy=PolicySettings(name, aging_seconds=10.0))
        priority = 5 if name == "priority" else 0
        bench.add("runs", [1, 2, 3], 10, tenant="a")
        bench.add("next", [1, 2, 3], 10, tenant="a")
        bench.run(lambda running=bench: running.now == START + 1)  # type: ignore[misc]
        bench.add("last", [5], 3, tenant="b", priority=priority, start_by=START + 50, end_by=START + 90)
        bench.run(lambda running=bench: running.now == START + 7)  # type: ignore[misc]
        found = trace(bench, "last")
        assert found.facts == RequestFacts(START + 1, 1, 1, "b", priority, START + 50, START + 90)
        assert found.standing == standing
        bench.run()
        assert (trace(bench, "last").facts, trace(bench, "last").standing) == (found.facts, {})


def count_calls(bench: Bench, request_ids: list[str] | None, count: int) -> int:
    """Of functions, while the engine tells what it knows: no step can begin meanwhile."""
    profile = cProfile.Profile()
    profile.runcall(bench.engine.traces, request_ids, count)
    return sum(entry.callcount for entry in profile.getstats())


def test_what_it_takes_to_tell_does_not_follow_what_is_open() -> None:
    benches = [Bench(max_num_seqs=1) for _ in range(2)]
    for bench, num_requests in zip(benches, (200, 10_000), strict=True):
        for number in range(num_requests):
            bench.add(str(number), [1, 2, 3], 5)
        bench.step()
    for request_ids, count in ((None, 100), (["7", "8"], 0)):
        few, many = (count_calls(bench, request_ids, count) for bench in benches)
        assert abs(few - many) < 50  # to find a place in line takes a few steps more
    assert len(benches[1].engine.traces(None, 100)) == 100


def test_the_list_has_the_last_event_of_each_alone() -> None:
    bench = Bench()
    bench.add("a", [1], 3)
    bench.add("b", [2], 9)
    bench.run(lambda: bench.now == START + 5)
    found = {each.request_id: each for each in bench.engine.traces(None, 9)}
    assert [[event.kind for event in found[name].events] for name in "ab"] == [["finished"], ["first_token"]]
    assert [found[name].num_dropped for name in "ab"] == [0, 0]
    assert (found["b"].statuses, found["b"].num_generated_tokens, found["b"].standing) == (["running"], 5, {})


def event(step: int) -> FlatEvent:
    return 0.0, step, 0, "chunk", "", 0, 1


def test_requests_are_bounded_and_those_that_ended_first_go_first() -> None:
    log = EventLog(max_requests=3)
    for name in "abcdefgh":
        log.open(name, RequestFacts(0.0, 1, 1))
    assert len(log) == 8  # all of them are open
    for name in "cabd":
        log.end(name)
    assert log.latest(9) == ["h", "g", "f", "e", "d", "b", "a"]  # three that ended, however many are open
    for name in "efgh":
        log.end(name)
    assert log.latest(9) == ["h", "g", "f"]
    for number in range(100):  # one id again and again
        log.open("same", RequestFacts(float(number), 1, 1))
        log.end("same")
    assert log.latest(9) == ["same"]
    assert len(log._ended) <= 3
    found = log.trace("same")
    assert found is not None
    assert found.facts.arrival == 99.0


def test_events_are_bounded_and_the_first_and_last_stay() -> None:
    log = EventLog()
    log.open("a", RequestFacts(0.0, 1, 1))
    for step in range(1000):
        log.note("a", event(step))
    found = log.trace("a")
    assert found is not None
    assert found.events[0] == RequestEvent(0.0, 0, 0, "chunk", (0, 1))
    steps = [each.step for each in found.events]
    assert steps == [*range(MAX_FIRST_EVENTS), *range(1000 - MAX_LAST_EVENTS, 1000)]
    assert found.num_dropped == 1000 - MAX_FIRST_EVENTS - MAX_LAST_EVENTS
    log.note("nobody", event(0))


def test_the_question_crosses_to_the_engine_process() -> None:
    for question in (ListTraces(3, ["a"], 0), ListTraces(4, None, 100)):
        assert decode_command(encode(question)) == question


def test_an_id_that_comes_again_begins_anew() -> None:
    bench = Bench()
    for prompt in ([1], [1, 2]):
        bench.engine.add_request(EngineRequest("a", prompt, SamplingParams(max_tokens=2, temperature=0), bench.now))
        bench.run()
    assert told(bench, "a")[0] == ("arrived", 0, 2, 1)
    assert trace(bench, "a").num_generated_tokens == 2
