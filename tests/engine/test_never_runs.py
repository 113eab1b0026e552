"""B03, D25: whatever the settings, a request either runs to its end or is refused at once with the numbers."""

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.beam_search import BeamSearchParams
from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig
from octavo.core.pin_types import PinWish
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import POLICY_NAMES, PREEMPTION_MODES, PolicySettings, SchedulerConfig, SkipBounds
from octavo.engine.engine import Engine, EngineParts
from octavo.engine.messages import EngineRequest
from tests.engine.test_engine import Pieces
from tests.support.fake_runner import VOCAB_SIZE, FakeRunner

NORMAL = "normal"


def engine_of(config: SchedulerConfig, cache: CacheConfig) -> Engine:
    ticks, seeds = count(100), count()
    scheduler = Scheduler(config, KVCacheManager(cache))
    parts = EngineParts(
        scheduler,
        FakeRunner(4),
        Pieces(),
        frozenset(),
        VOCAB_SIZE,
        lambda: next(ticks) * 0.01,
        lambda: next(seeds),
        1024,
    )
    return Engine(parts)


@st.composite
def engines(draw: st.DrawFn) -> Engine:
    seqs, depth = draw(st.integers(1, 6)), draw(st.integers(1, 2))
    budget = draw(st.integers(seqs, 40))
    config = SchedulerConfig(
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        max_model_len=draw(st.integers(12, 90)),
        max_steps_in_flight=depth,
        head_skips=SkipBounds(draw(st.integers(0, 4)), draw(st.integers(0, 8))),
        preemption_mode=draw(st.sampled_from(PREEMPTION_MODES)),
        policy=PolicySettings(draw(st.sampled_from(POLICY_NAMES))),
    )
    cache = CacheConfig(
        num_blocks=draw(st.integers(5, 24)),
        block_size=4,
        enable_prefix_caching=draw(st.booleans()),
        num_host_blocks=draw(st.sampled_from([0, 10])),
        pin_quota=draw(st.sampled_from([0.0, 0.25, 0.8])),
    )
    return engine_of(config, cache)


@st.composite
def requests(draw: st.DrawFn, name: str) -> EngineRequest:
    prompt = draw(st.lists(st.integers(0, 9), min_size=1, max_size=100))
    max_tokens = draw(st.one_of(st.none(), st.integers(1, 100)))
    width = draw(st.integers(1, 4))
    fields: dict[str, Any] = {"clamp_max_tokens": draw(st.booleans()), "tenant": draw(st.sampled_from("ab"))}
    if draw(st.booleans()):
        fields["beam_search"] = BeamSearchParams(width, max_tokens)
    if draw(st.booleans()):
        fields["pins"] = (PinWish(draw(st.integers(1, len(prompt))), ttl=0.3, is_required=draw(st.booleans())),)
    return EngineRequest(name, prompt, SamplingParams(temperature=0, n=width, max_tokens=max_tokens), 1.0, **fields)


@given(engines(), st.integers(1, 5).flatmap(lambda num: st.tuples(*(requests(str(index)) for index in range(num)))))
@settings(max_examples=150, deadline=None)
def test_every_request_ends_or_is_refused_with_the_numbers(engine: Engine, asked: tuple[EngineRequest, ...]) -> None:
    check_ends(engine, asked)


def check_ends(engine: Engine, asked: Sequence[EngineRequest]) -> None:
    for request in asked:
        engine.add_request(request)
    engine.add_request(EngineRequest(NORMAL, [1, 2, 3], SamplingParams(max_tokens=4), 1.0))
    ends: dict[str, list[Any]] = defaultdict(list)
    for _ in range(6000):
        if not engine._requests.sequences and not engine._requests.news.deltas:
            break
        for delta in engine.step().deltas:
            if delta.finish_reason is not None:
                ends[delta.request_id].append(delta)
    assert not engine._requests.sequences, "somebody waits for ever"
    (normal,) = ends[NORMAL]
    assert normal.finish_reason == "length"
    for request in asked:
        told = ends[request.request_id]
        refused = [delta for delta in told if delta.finish_reason == "error"]
        if not refused:
            assert len(told) == request.num_choices
            assert {delta.finish_reason for delta in told} <= {"stop", "length"}
        else:
            assert all(delta.invalid_param for delta in refused)
            for delta in refused:
                if delta.invalid_param != "pin_prefix":  # which may be off
                    assert len(re.findall(r"\d+", delta.error)) >= 2, delta.error


def test_two_searches_do_not_take_turns() -> None:
    """A search found at random: under policy "fair" a beam that had given way came back for ever before those of the
    first search, which it had gone for."""
    config = SchedulerConfig(
        max_num_seqs=6,
        max_num_batched_tokens=18,
        max_model_len=63,
        head_skips=SkipBounds(2, 3),
        preemption_mode="swap",
        policy=PolicySettings("fair"),
    )
    search, greedy = BeamSearchParams(4, None), SamplingParams(temperature=0, n=3)
    asked = [
        EngineRequest("0", [4, 5, 9, 7, 7, 6, 7, 1, 3, 4], greedy, 1.0, clamp_max_tokens=True, beam_search=search),
        EngineRequest("1", [7, 5, 1, 3, 1, 8], greedy, 1.0, clamp_max_tokens=True),
        EngineRequest("2", [6, 0, 1, 5, 9, 5, 2, 7, 1], SamplingParams(temperature=0, max_tokens=40), 1.0),
        EngineRequest("3", [4, 1, 4, 0, 2, 1, 0, 0, 0], greedy, 1.0, beam_search=search),
    ]
    check_ends(engine_of(config, CacheConfig(num_blocks=15, block_size=4, enable_prefix_caching=False)), asked)


def test_who_gave_way_to_a_long_prompt_does_not_come_back_before_it() -> None:
    """A case found at random: the turn of request 2 is overdue, and under policy "fair" a choice of request 1 gave way
    to it in every step."""
    config = SchedulerConfig(
        max_num_seqs=5,
        max_num_batched_tokens=34,
        max_model_len=43,
        max_steps_in_flight=2,
        head_skips=SkipBounds(4, 5),
        preemption_mode="recompute",
        policy=PolicySettings("fair"),
    )
    prompts = [range(27), range(30, 40), range(50, 83), range(90, 99)]
    params = [(4, 10), (4, 35), (1, None), (3, None)]
    asked = [
        EngineRequest(
            str(index),
            list(prompt),
            SamplingParams(temperature=0, n=num_choices, max_tokens=max_tokens),
            1.0,
            clamp_max_tokens=True,
        )
        for index, (prompt, (num_choices, max_tokens)) in enumerate(zip(prompts, params, strict=True))
    ]
    check_ends(engine_of(config, CacheConfig(13, 4, enable_prefix_caching=False, num_host_blocks=10)), asked)
