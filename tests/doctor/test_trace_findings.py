"""What a trace says is wrong, held to traces of which the answer is known, and to a cache that is really simulated."""

from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.eviction_traces import read_mooncake
from octavo.core.eviction_policies import EVICTION_POLICIES
from octavo.core.name_cache import NameCache
from octavo.doctor.finding import Report, Severity
from octavo.doctor.lengths import EmptySlots
from octavo.doctor.reuse import ReuseDistances
from octavo.doctor.sharing import Sharing
from octavo.doctor.trace import TraceExamination
from octavo.sim.traces.request import TracedRequest
from octavo.sim.traces.source import open_source

MOONCAKE = Path(__file__).parents[1] / "core" / "data" / "mooncake_conversation.jsonl.gz"


def examined(requests: Iterable[TracedRequest], size: int | None = None, num_blocks: int | None = None) -> Report:
    examination = TraceExamination(size, num_blocks)
    examination.read(requests, is_octavo=True)
    return examination.report("trace")


def named(number: int, blocks: list[int], output: int = 20, size: int = 16) -> TracedRequest:
    return TracedRequest(float(number), size * len(blocks), output, blocks=blocks, block_size=size)


@given(st.integers(1, 40), st.integers(1, 200), st.integers(1, 100))
def test_empty_slots_are_those_of_every_step(block_size: int, prompt: int, output: int) -> None:
    slots = EmptySlots(block_size)
    slots.add(prompt, output)
    assert slots.empty == sum(-length % block_size for length in range(prompt, prompt + output))


def test_large_blocks_for_short_requests() -> None:
    """Sequences of 33 to 36 tokens in blocks of 64, and of 16, the smallest that the kernels do not gather."""
    report = examined((TracedRequest(float(number), 33, 4) for number in range(50)), size=64)
    (finding,) = report.findings
    assert (finding.name, finding.severity) == ("block-size", Severity.SEVERE)
    assert finding.what == (
        "Blocks of 64 tokens leave 29.5 slots of a sequence empty on average, 46% of what it holds."
    )
    assert finding.change == "Serve with --block-size 16."
    assert finding.figures["empty_share_8"] == (7 + 6 + 5 + 4) / (4 * 40)
    assert finding.figures["empty_share_16"] == (15 + 14 + 13 + 12) / (4 * 48)
    assert "for 33% more tokens" in finding.gain


def test_requests_of_fitting_lengths_are_well() -> None:
    report = examined(TracedRequest(float(number), 300, 200) for number in range(50))
    assert report.findings == ()
    assert "50 requests in 49 seconds: 15,000 prompt tokens, 10,000 of answers." in report.looked_at
    assert "This trace has lengths alone" in report.unseen[0]


def test_a_long_tail() -> None:
    report = examined(TracedRequest(0.0, 300, 2000 if number % 20 == 0 else 100) for number in range(100))
    (finding,) = report.findings
    assert (finding.name, finding.severity) == ("long-tail", Severity.NOTE)
    assert "2,000 tokens or more, 20 times the median of 100" in finding.what


def rounds(num_prompts: int, num_rounds: int) -> list[TracedRequest]:
    """Prompts of ten blocks that have nothing in common, one after the other, over and over."""
    return [
        named(turn * num_prompts + each, [1000 * each + block for block in range(10)])
        for turn in range(num_rounds)
        for each in range(num_prompts)
    ]


def test_a_cache_that_gives_up_what_comes_next() -> None:
    """Ten prompts of 160 tokens in turn: with room for nine, the least recently used is what comes next."""
    (finding,) = examined(rounds(10, 11), num_blocks=90).findings
    assert (finding.name, finding.severity) == ("cache-thrashing", Severity.SEVERE)
    assert finding.figures["hit_share"] == 0
    assert finding.figures["reusable_share"] == pytest.approx(10 / 11)
    assert finding.figures["lost_tokens"] == 10 * 10 * 160
    assert 100 * 16 <= finding.figures["enough_tokens"] <= 109 * 16
    assert "16,000 tokens, 145 a request, are evicted before they are wanted" in finding.what
    assert examined(rounds(10, 11), num_blocks=110).findings == ()


def test_without_the_size_of_a_cache_nothing_is_said_against_it() -> None:
    report = examined(rounds(10, 11))
    assert report.findings == ()
    assert any("give --num-blocks" in line for line in report.unseen)


def test_prompts_that_begin_with_something_of_their_own() -> None:
    report = examined(named(number, [number * 100 + block for block in range(20)]) for number in range(200))
    (finding,) = report.findings
    assert (finding.name, finding.severity) == ("nothing-shared", Severity.WARNING)
    assert finding.figures["lonely_share"] == 1.0


def test_the_part_of_a_block_that_a_prompt_has_counts() -> None:
    """A prompt of 20 tokens in blocks of 16, and names that go on into its answer."""
    sharing = Sharing()
    for _ in range(2):
        sharing.add(TracedRequest(0.0, 20, 40, blocks=[1, 2, 3, 4], block_size=16))
    assert (sharing.reuse.uses, sharing.reuse.reuses) == (40, 20)
    assert sharing.reuse.hits(4) == 20


@given(st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=6, unique=True), max_size=40), st.integers(1, 12))
def test_hits_are_those_of_a_cache_by_recency(uses: list[list[int]], num_blocks: int) -> None:
    """Whatever is used, with room that ends where a bucket does."""
    reuse, cache, hits = ReuseDistances(), OrderedDict[int, None](), 0
    for keys in uses:
        reuse.use(keys, [1] * len(keys), len(keys))
        recent = list(cache)[-num_blocks:]
        hits += sum(key in recent for key in keys)
        for key in reversed(keys):
            cache.pop(key, None)
            cache[key] = None
    if num_blocks <= 8:  # buckets of one distance each
        assert round(reuse.hits(num_blocks), 9) == hits


def test_hits_of_the_recorded_load_are_those_of_a_real_cache() -> None:
    """Within a hundredth of the prompt tokens, with all blocks followed and with one in eight."""
    trace = read_mooncake(MOONCAKE)
    exact, sampled = Sharing(1 << 18), Sharing(1 << 15)
    for request in open_source(MOONCAKE).requests():
        exact.add(request)
        sampled.add(request)
    assert (exact.reuse.one_in, sampled.reuse.one_in) == (1, 8)
    assert exact.reuse.uses == sum(request.num_tokens for request in trace.requests)
    for num_blocks in (1953, 7812, 31250):
        cache = NameCache(num_blocks, EVICTION_POLICIES["lru"])
        hits = sum(
            min(cache.serve(request.names, num_blocks) * trace.block_size, request.num_tokens)
            for request in trace.requests
        )
        for sharing in (exact, sampled):
            assert sharing.hit_share(num_blocks) == pytest.approx(hits / exact.reuse.uses, abs=0.01)


def test_memory_is_bounded() -> None:
    rng, sharing = Random(0), Sharing(max_keys=512)
    for number in range(3000):
        sharing.add(named(number, [rng.randrange(10**6) for _ in range(20)]))
    assert len(sharing.reuse._recency) <= 512
    assert len(sharing._roots) <= 512
    assert sharing.lonely_share > 0.9
