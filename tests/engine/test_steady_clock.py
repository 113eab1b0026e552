"""Times of requests follow no clock that somebody may set."""

import os
import time
from functools import partial

import pytest

from octavo.bench.front.engine import FrontEngineOptions, front_engine
from octavo.core.sampling_params import SamplingParams
from octavo.engine.client import AsyncEngineClient
from octavo.engine.messages import EngineOutputs, EngineRequest
from octavo.engine.steady_clock import steady_time


def test_a_clock_that_is_put_forward_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before, really = steady_time(), time.time
    monkeypatch.setattr(time, "time", lambda: really() + 3600)
    assert 0 <= steady_time() - before < 60


@pytest.mark.parametrize("seconds", [-3600.0, 3600.0])
async def test_the_engines_process_tells_the_same_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Though the clock has been put forward or back between the starts of the two."""
    monkeypatch.setattr(steady_time, "epoch", steady_time.epoch + seconds)
    told: list[EngineOutputs] = []
    client = AsyncEngineClient(lambda outputs, _: told.append(outputs), log_stats=False)
    await client.start(partial(front_engine, FrontEngineOptions(min(os.sched_getaffinity(0)))))
    try:
        start = steady_time()
        request = EngineRequest("a", [1], SamplingParams(max_tokens=3), start)
        assert "".join([delta.text async for delta in client.generate(request)])
        (times,) = [times for outputs in told for times in outputs.finished]
        assert times.first_token is not None
        assert start == times.arrival <= times.first_token <= times.finished <= steady_time()
        assert all(0 <= each < 60 for outputs in told for each in outputs.first_token_seconds)
    finally:
        await client.child.end()
