"""What series say is wrong: each finding from figures that show it, and none from figures of a server that is well."""

from collections.abc import Mapping
from typing import Any

import pytest

from octavo.doctor.finding import Finding, Severity
from octavo.doctor.series import Counts, ServerSummary
from octavo.doctor.server import examine_server

Figures = dict[str | tuple[str, str], float]

WELL: Figures = {
    "octavo:kv_blocks_total": 1000,
    "octavo:kv_block_tokens": 16,
    ("octavo:kv_blocks", "free"): 200,
    ("octavo:kv_blocks", "cached"): 300,
    ("octavo:kv_blocks", "pinned"): 0,
    ("octavo:kv_blocks", "active"): 500,
    "octavo:kv_blocks_allocatable": 400,
    "octavo:filled_slot_ratio": 0.97,
    "vllm:num_requests_running": 20,
    ("octavo:prompt_length_tokens", "0.5"): 300,
    ("octavo:prompt_length_tokens", "0.9"): 700,
    ("octavo:prompt_length_tokens", "0.99"): 900,
    ("octavo:output_length_tokens", "0.5"): 200,
    ("octavo:output_length_tokens", "0.9"): 300,
    ("octavo:output_length_tokens", "0.99"): 400,
    ("vllm:request_success_total", "stop"): 1000,
    "vllm:prompt_tokens_total": 300_000,
    "vllm:generation_tokens_total": 200_000,
    "vllm:prefix_cache_queries_total": 300_000,
    "vllm:prefix_cache_hits_total": 200_000,
    "octavo:steps_total": 5000,
}
BEFORE: Figures = {"octavo:steps_total": 4000}


def summary(changes: Mapping[Any, float] = {}, before: Figures = BEFORE, **known: Any) -> ServerSummary:
    return ServerSummary.of("m", before, WELL | dict(changes), 10.0, **known)


def found(changes: Mapping[Any, float], **known: Any) -> Finding:
    """The one finding that these changes make."""
    report = examine_server("http://here", summary(changes, **known))
    (finding,) = report.findings
    return finding


def test_a_server_that_is_well() -> None:
    report = examine_server("http://here", summary())
    assert report.findings == ()
    assert not report.is_severe
    assert "1,000 answers" in report.looked_at[1]
    assert report.looked_at[2] == "The prefix cache held 67% of the prompt tokens."


def test_pins_that_nobody_uses() -> None:
    finding = found({"octavo:pinned_blocks": 500, ("octavo:kv_blocks", "pinned"): 420})
    assert (finding.name, finding.severity) == ("pinned-share", Severity.SEVERE)
    assert finding.what.startswith("Pins hold 500 of 1,000 blocks (50%), 420 of them in no request's use")
    assert "500 blocks (8,000 tokens)" in finding.what
    assert "--pin-quota 0.1." in finding.change, "8 % of the blocks are pinned and used"
    assert finding.gain.startswith("400 blocks, 6,400 tokens")
    assert "6 more requests of 1,008 tokens" in finding.gain, "63 blocks each"


def test_pins_within_reason_are_no_finding() -> None:
    assert not examine_server("x", summary({"octavo:pinned_blocks": 250})).findings
    assert found({"octavo:pinned_blocks": 300}).severity is Severity.WARNING


def test_blocks_that_are_large_for_short_requests() -> None:
    lengths = {("octavo:prompt_length_tokens", "0.5"): 100, ("octavo:output_length_tokens", "0.5"): 40}
    finding = found(lengths | {"octavo:kv_block_tokens": 128, "octavo:filled_slot_ratio": 0.65})
    assert (finding.name, finding.severity) == ("block-size", Severity.SEVERE)
    assert "leave 35% of the slots" in finding.what
    assert "--block-size 16." in finding.change
    assert finding.figures["empty_share_then"] == pytest.approx(7.5 / 127.5)
    nobody = {("octavo:kv_blocks", "active"): 0, "octavo:filled_slot_ratio": float("nan")}
    idle = found(lengths | nobody | {"octavo:kv_block_tokens": 128})
    assert idle.severity is Severity.WARNING
    assert idle.figures["empty_share"] == pytest.approx(63.5 / 183.5)
    assert "by the median lengths (100 and 40 tokens)" in idle.what


def test_a_few_short_answers_say_nothing_of_block_sizes() -> None:
    """Nor is a size advised that the kernels gather."""
    lengths: Figures = {("octavo:prompt_length_tokens", "0.5"): 5, ("octavo:output_length_tokens", "0.5"): 23}
    ended = ("vllm:request_success_total", "stop")
    lengths["octavo:filled_slot_ratio"] = 0.5
    assert not examine_server("x", summary(lengths)).findings
    large = lengths | {"octavo:kv_block_tokens": 128}
    assert not examine_server("x", summary(large | {ended: 19})).findings
    assert "--block-size 16." in found(large | {ended: 20}).change


def test_a_cache_that_is_replaced_and_hits_little() -> None:
    finding = found({"vllm:prefix_cache_hits_total": 30_000, "octavo:evicted_blocks_total": 15_000})
    assert (finding.name, finding.severity) == ("cache-turnover", Severity.WARNING)
    assert "held 10% of the prompt tokens" in finding.what
    assert "15 times what there is" in finding.what
    assert "about 0.667 seconds" in finding.what
    assert "octavo doctor FILE --num-blocks 1000" in finding.change


def test_preemptions() -> None:
    finding = found({"vllm:num_preemptions_total": 80, "octavo:preempted_tokens_total": 30_000})
    assert (finding.name, finding.severity) == ("preemptions", Severity.SEVERE)
    assert "80 preemptions in the last 10 seconds, 8 for 100 answers; 30,000 computed tokens" in finding.what
    assert "--num-blocks 1250" in finding.change
    assert "--max-num-seqs 16" in finding.change
    assert finding.gain.startswith("9.1% of the computed tokens"), "30,000 of 330,000"
    assert found({"vllm:num_preemptions_total": 20}).severity is Severity.WARNING


def test_memory_that_requests_wait_for() -> None:
    finding = found({"vllm:num_requests_waiting": 9, "octavo:kv_blocks_allocatable": 3})
    assert (finding.name, finding.severity) == ("memory-full", Severity.SEVERE)
    assert "9 requests wait and a new one could get 3 of 1,000 blocks" in finding.what


@pytest.mark.parametrize(
    ("changes", "known", "words"),
    [
        ({"octavo:steps_total": 4000}, {}, "took no step in 10 seconds"),
        ({}, {"max_num_seqs": 20}, "as many as --max-num-seqs lets"),
        ({"octavo:admissible_prompt_tokens": 500}, {}, "prompts of up to 500 tokens would be let in"),
    ],
)
def test_a_queue_that_is_old(changes: Figures, known: dict[str, Any], words: str) -> None:
    finding = found(changes | {"octavo:queue_head_age_seconds": 31, "vllm:num_requests_waiting": 4}, **known)
    assert (finding.name, finding.severity) == ("queue-age", Severity.SEVERE)
    assert words in finding.what


def test_refusals_by_reason() -> None:
    reasons = {
        ("octavo:requests_rejected_total", "queue_full"): 60,
        ("octavo:requests_rejected_total", "rate_limit"): 4,
    }
    finding = found(reasons)
    assert (finding.name, finding.severity) == ("refusals", Severity.SEVERE)
    assert "64 requests (6.0%) were refused in the last 10 seconds: queue_full 60, rate_limit 4." in finding.what
    assert "--max-num-queued-reqs" in finding.change
    assert "--api-key-file" in finding.change
    client = found({("octavo:requests_rejected_total", "prompt"): 500})
    assert (client.name, client.severity) == ("bad-requests", Severity.WARNING)
    assert client.change.startswith("prompt: raise --max-model-len")
    other = found({("octavo:requests_rejected_total", "invalid"): 500})
    assert other.change == "For the rest see the messages that clients get (--log-requests)"


def test_time_outs_and_failures() -> None:
    assert found({("octavo:requests_timed_out_total", "queue"): 11}).name == "time-outs"
    assert found({("vllm:request_success_total", "error"): 1}).severity is Severity.WARNING
    assert found({"octavo:engine_restarts_total": 1}).severity is Severity.SEVERE


def test_answers_ended_by_their_time_are_no_failures() -> None:
    errors, late = ("vllm:request_success_total", "error"), ("octavo:requests_timed_out_total", "deadline")
    few = {("vllm:request_success_total", "stop"): 3, errors: 1, late: 1}
    assert not examine_server("x", summary(few, {"octavo:steps_total": 4990})).findings
    many = {("vllm:request_success_total", "stop"): 40, errors: 10, late: 10}
    assert found(many).name == "time-outs"
    both = examine_server("x", summary(many | {errors: 12})).findings
    assert [each.name for each in both] == ["time-outs", "failures"]
    assert both[1].figures["errors"] == 2


def test_a_long_tail_is_worth_a_note_until_it_hurts() -> None:
    tail = {("octavo:output_length_tokens", "0.5"): 50, ("octavo:output_length_tokens", "0.99"): 2000}
    assert found(tail).severity is Severity.NOTE
    assert "2,000 tokens or more, 40 times the median of 50" in found(tail).what
    pressed = summary(tail | {"vllm:num_preemptions_total": 1})
    assert [each.severity for each in examine_server("x", pressed).findings] == [Severity.WARNING]


def test_drafts_that_do_not_pay() -> None:
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    drafted = dict(zip((f"vllm:spec_decode_{name}_total" for name in names), (10_000, 100_000, 12_000), strict=True))
    finding = found(drafted)
    assert finding.name == "drafts"
    assert "--num-speculative-tokens 2," in finding.change
    assert finding.figures["vain_tokens"] == 88_000
    assert not examine_server("x", summary(drafted | {"vllm:spec_decode_num_accepted_tokens_total": 60_000})).findings


def test_hits_that_bring_nothing() -> None:
    ttft = "octavo:time_to_first_token_seconds"
    times = {(f"{ttft}_count", "none"): 50, (f"{ttft}_sum", "none"): 100.0}
    times |= {(f"{ttft}_count", "nearly_all"): 40, (f"{ttft}_sum", "nearly_all"): 76.0}
    finding = found(times)
    assert finding.name == "hits-without-benefit"
    assert "waited 1,900 ms" in finding.what
    assert not examine_server("x", summary(times | {(f"{ttft}_sum", "nearly_all"): 10.0})).findings


def test_little_in_the_gap_counts_since_the_server_began() -> None:
    before = WELL | {("vllm:request_success_total", "stop"): 990}
    told = summary(before=before)
    assert told.counts.seconds is None
    assert told.counts.num_ended == 1000
    assert "since the server began" in examine_server("x", told).looked_at[1]
    assert summary(before=WELL | {("vllm:request_success_total", "stop"): 900}).counts.num_ended == 100


def test_counters_that_began_anew() -> None:
    """The engine was started again between the two readings."""
    counts = Counts.between({"octavo:steps_total": 500}, {"octavo:steps_total": 30}, 10.0)
    assert counts.steps == 30


def test_a_server_that_has_done_nothing() -> None:
    report = examine_server("x", ServerSummary.of("m", {}, {"octavo:kv_blocks_total": 10}, 1.0))
    assert report.findings == ()
    assert "No answer has ended yet: nothing is known of lengths, hits and refusals under load." in report.unseen


def test_the_severest_first() -> None:
    changes = {"octavo:pinned_blocks": 300, "vllm:num_preemptions_total": 80}
    names = [each.name for each in examine_server("x", summary(changes)).findings]
    assert names == ["preemptions", "pinned-share"]
