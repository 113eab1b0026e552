"""The engine with drafts: what clients are told when several tokens of an answer land at once."""

import pytest

from octavo.core.speculation import Speculation
from tests.engine.test_engine import DEPTHS, Bench, spelled
from tests.support.drafters import HostileDrafter, Oracle
from tests.support.fake_runner import expected_output, next_candidates

PROMPT = [1, 2, 3]


def drafting(depth: int = 1, **settings: object) -> Bench:
    return Bench(depth, speculation=Speculation(4, Oracle), **settings)  # type: ignore[arg-type]


@DEPTHS
def test_a_delta_holds_all_tokens_of_a_step(depth: int) -> None:
    bench = drafting(depth)
    bench.add("a", PROMPT, max_tokens=14)
    bench.run()
    expected = expected_output(PROMPT, 14)
    assert [len(delta.token_ids) for delta in bench.deltas["a", 0]] == [1, 5, 5, 3]
    assert bench.tokens("a") == expected
    assert bench.text("a") == spelled(expected)
    assert bench.end("a").finish_reason == "length"
    stats = bench.engine.stats()
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (3, 10, 10)
    assert stats.generation_tokens == 14


@DEPTHS
def test_logprobs_come_one_a_token(depth: int) -> None:
    bench = drafting(depth)
    bench.add("a", PROMPT, max_tokens=9, logprobs=2)
    bench.run()
    entries = [entry for delta in bench.deltas["a", 0] for entry in delta.logprobs or ()]
    tokens = expected_output(PROMPT, 9)
    assert [entry.token_id for entry in entries] == tokens
    assert [entry.top for entry in entries] == [next_candidates([*PROMPT, *tokens[:n]], 2) for n in range(9)]


@DEPTHS
@pytest.mark.parametrize("place", range(1, 12))
def test_a_stop_string_ends_the_text_in_the_midst_of_a_step(depth: int, place: int) -> None:
    bench, expected = drafting(depth), expected_output(PROMPT, 14)
    stop = f"{expected[place]}><{expected[place + 1]}"
    bench.add("a", PROMPT, max_tokens=30, stop=stop)
    bench.run()
    assert bench.text("a") == spelled(expected[:place]) + "<"
    assert bench.tokens("a") == expected[: place + 2]
    assert (bench.end("a").finish_reason, bench.end("a").stop_reason) == ("stop", stop)


@DEPTHS
def test_stop_strings_wait_for_min_tokens(depth: int) -> None:
    expected = expected_output(PROMPT, 14)
    plain, bench = Bench(depth), drafting(depth)
    for each in (plain, bench):
        each.add("a", PROMPT, max_tokens=14, min_tokens=7, stop=[f"<{token}>" for token in expected])
        each.run()
    assert bench.tokens("a") == plain.tokens("a")
    assert bench.text("a") == plain.text("a")
    assert bench.end("a").stop_reason == plain.end("a").stop_reason


@DEPTHS
def test_eos_in_the_midst_of_a_step(depth: int) -> None:
    expected = expected_output(PROMPT, 9)
    bench = drafting(depth, eos=frozenset([expected[7]]))
    bench.add("a", PROMPT, max_tokens=30)
    bench.add("ignored", PROMPT, max_tokens=20, ignore_eos=True)
    bench.run()
    assert bench.tokens("a") == expected[:8]
    assert bench.text("a") == spelled(expected[:7])
    assert bench.end("a").finish_reason == "stop"
    assert bench.tokens("ignored") == expected_output(PROMPT, 20)


def test_tokens_that_come_together_have_no_time_between_them() -> None:
    bench = drafting()
    bench.add("a", PROMPT, max_tokens=11)
    bench.run()
    intervals = [seconds for outputs in bench.outputs for seconds in outputs.token_intervals]
    assert len(intervals) == 10
    assert [seconds > 0 for seconds in intervals] == [True, *[False] * 4] * 2


@DEPTHS
def test_a_row_without_a_token_to_draw_ends_alone(depth: int) -> None:
    bench = drafting(depth)
    bench.add("a", PROMPT, max_tokens=30)
    bench.add("b", [4, 5], max_tokens=9)
    bench.runner.faults = lambda row_id: row_id == 0 and len(bench.runner.plans) > 4
    bench.run()
    assert bench.end("a").error == "the model could not compute this request: stuck"
    assert bench.tokens("a") == expected_output(PROMPT, 30)[: len(bench.tokens("a"))]
    assert bench.tokens("b") == expected_output([4, 5], 9)


@DEPTHS
def test_abort_at_any_step(depth: int) -> None:
    for when in range(8):
        bench = Bench(depth, num_blocks=12, speculation=Speculation(6, HostileDrafter))
        bench.add("kept", list(range(20)), max_tokens=12)
        bench.add("gone", list(range(30, 40)), max_tokens=12)
        bench.run(lambda step, bench=bench, when=when: bench.engine.abort("gone") if step == when else None)  # type: ignore[misc]
        assert bench.tokens("kept") == expected_output(list(range(20)), 12)
        gone = bench.tokens("gone")
        assert gone == expected_output(list(range(30, 40)), 12)[: len(gone)]


def test_the_engine_measures_what_a_row_costs() -> None:
    """Its clock ticks once a reading, so that a step of five rows takes as long as one of one."""
    bench = drafting()
    bench.add("a", PROMPT, max_tokens=60)
    bench.run()
    costs = bench.scheduler.speculation.costs
    assert costs._num_steps == len(bench.runner.plans) - 1, "the step of the prompt says nothing"
