"""B03, D25: whatever the settings, a request either runs to its end or is refused at once with the numbers."""

import re
from collections import defaultdict
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
from octavo.core.scheduler_types import PREEMPTION_MODES, PolicySettings, SchedulerConfig, SkipBounds
from octavo.engine.engine import Engine, EngineParts
from octavo.engine.messages import EngineRequest
from tests.engine.test_engine import Pieces
from tests.support.fake_runner import VOCAB_SIZE, FakeRunner

NORMAL = "normal"


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
        policy=PolicySettings(draw(st.sampled_from(("fcfs", "priority")))),
    )
    cache = CacheConfig(
        num_blocks=draw(st.integers(5, 24)),
        block_size=4,
        enable_prefix_caching=draw(st.booleans()),
        num_host_blocks=draw(st.sampled_from([0, 10])),
        pin_quota=draw(st.sampled_from([0.0, 0.25, 0.8])),
    )
    runner, seeds = FakeRunner(4), count()
    ticks = count(100)
    scheduler = Scheduler(config, KVCacheManager(cache))
    parts = EngineParts(
        scheduler,
        runner,
        Pieces(),
        frozenset(),
        VOCAB_SIZE,
        lambda: next(ticks) * 0.01,
        lambda: next(seeds),
        1024,
    )
    return Engine(parts)


@st.composite
def requests(draw: st.DrawFn, name: str) -> EngineRequest:
    prompt = draw(st.lists(st.integers(0, 9), min_size=1, max_size=100))
    max_tokens = draw(st.one_of(st.none(), st.integers(1, 100)))
    width = draw(st.integers(1, 4))
    fields: dict[str, Any] = {"clamp_max_tokens": draw(st.booleans())}
    if draw(st.booleans()):
        fields["beam_search"] = BeamSearchParams(width, max_tokens)
    if draw(st.booleans()):
        fields["pins"] = (PinWish(draw(st.integers(1, len(prompt))), ttl=0.3, is_required=draw(st.booleans())),)
    return EngineRequest(name, prompt, SamplingParams(temperature=0, n=width, max_tokens=max_tokens), 1.0, **fields)


@given(engines(), st.integers(1, 5).flatmap(lambda num: st.tuples(*(requests(str(index)) for index in range(num)))))
@settings(max_examples=150, deadline=None)
def test_every_request_ends_or_is_refused_with_the_numbers(engine: Engine, asked: tuple[EngineRequest, ...]) -> None:
    for request in asked:
        engine.add_request(request)
    engine.add_request(EngineRequest(NORMAL, [1, 2, 3], SamplingParams(max_tokens=4), 1.0))
    ends: dict[str, list[Any]] = defaultdict(list)
    for _ in range(6000):
        if not engine._open and not engine._news.deltas:
            break
        for delta in engine.step().deltas:
            if delta.finish_reason is not None:
                ends[delta.request_id].append(delta)
    assert not engine._open, "somebody waits for ever"
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
