"""The client of the engine process, with a process that says what a test says: who is told, what is ended, when."""

import asyncio
import re
import time
from contextlib import aclosing
from typing import Any

import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.sampling_params import SamplingParams
from octavo.engine.client import AsyncEngineClient
from octavo.engine.codec import Command, News
from octavo.engine.messages import EngineOutputs, EngineRequest, OutputDelta
from octavo.engine.streams import READERS_A_TURN


class Child:
    """A process that lives and does nothing."""

    is_alive = True

    def __init__(self) -> None:
        self.commands: list[str] = []

    def send(self, command: Command) -> None:
        self.commands.append(type(command).__name__)


class Bench:
    def __init__(self) -> None:
        self.client = AsyncEngineClient(lambda outputs, iterations: None)
        self.client.child.shutdown()  # it has sockets
        self.child: Any = Child()
        self.client.child = self.child

    async def begin(self, n: int = 1, end_by: float | None = None) -> "asyncio.Task[list[OutputDelta]]":
        request = EngineRequest("r", [1, 2], SamplingParams(n=n, max_tokens=1000), 0.0, end_by=end_by)

        async def read() -> list[OutputDelta]:
            return [delta async for delta in self.client.generate(request)]

        task = asyncio.create_task(read())
        await asyncio.sleep(0)
        return task

    def say(self, *deltas: OutputDelta, started: bool = False) -> None:
        self.client._take(News(EngineOutputs(list(deltas), started=["r"] if started else []), []))


def ended(index: int, reason: str = "stop", **fields: Any) -> OutputDelta:
    return OutputDelta("r", index, finish_reason=reason, **fields)


async def test_a_fault_of_one_choice_ends_the_others_in_the_engine() -> None:
    bench = Bench()
    reading = await bench.begin(n=2)
    bench.say(started=True)
    bench.say(ended(0, "error", error="no token is left", invalid_param=""))
    with pytest.raises(InvalidRequestError, match="no token is left"):
        await reading
    assert bench.child.commands == ["Add", "Abort"]


@pytest.mark.parametrize("n", [1, 2])
async def test_nothing_is_left_to_end_of_a_refused_request(n: int) -> None:
    bench = Bench()
    reading = await bench.begin(n)
    bench.say(ended(0, "error", error="too long", invalid_param="prompt"))
    with pytest.raises(InvalidRequestError, match="too long"):
        await reading
    assert bench.child.commands == ["Add"]


async def test_nothing_is_left_to_end_of_a_finished_request() -> None:
    bench = Bench()
    reading = await bench.begin(n=2)
    bench.say(ended(1), started=True)
    bench.say(ended(0))
    assert {delta.index for delta in await reading} == {0, 1}
    assert bench.child.commands == ["Add"]


async def test_what_is_computed_waits_no_longer() -> None:
    """It has said nothing yet: its prompt may be long."""
    bench = Bench()
    reading = await bench.begin()
    assert len(bench.client.queued()) == 1
    bench.say(started=True)
    assert bench.client.queued() == []
    bench.client.fail_queued(RuntimeError("the server is shutting down"))
    bench.say(ended(0))
    assert len(await reading) == 1


async def test_what_fails_here_is_aborted_once() -> None:
    bench = Bench()
    reading = await bench.begin(n=2)
    bench.client.fail_queued(RuntimeError("the server is shutting down"))
    bench.client.fail_open(RuntimeError("time is up"))
    with pytest.raises(RuntimeError, match="shutting down"):
        await reading
    assert bench.child.commands == ["Add", "Abort"]


async def test_what_is_told_when_the_time_is_over() -> None:
    bench = Bench()
    now = time.time()
    request = EngineRequest("r", [1], SamplingParams(), now, start_by=now + 0.05, end_by=now + 0.1)
    async with aclosing(bench.client.generate(request)) as deltas:
        over = await anext(deltas)
    assert (over.timeout, over.finish_reason) == ("queue", "error")
    assert re.fullmatch(r"it has waited 0\.\d+ s without being started and may wait 0\.05 s", over.error or "")
    assert bench.child.commands == ["Add", "Abort"]


async def test_what_has_started_is_not_ended_by_its_wait() -> None:
    bench = Bench()
    now = time.time()
    request = EngineRequest("r", [1], SamplingParams(), now, start_by=now + 0.02, end_by=now + 0.2)
    async with aclosing(bench.client.generate(request)) as deltas:
        first = asyncio.ensure_future(anext(deltas))
        await asyncio.sleep(0)
        bench.say(OutputDelta("r", 0, "text"), started=True)
        assert (await first).text == "text"
        over = await anext(deltas)
    assert time.time() >= now + 0.2
    assert over.timeout == "deadline"
    assert over.error == "it is not finished after 0.2 s and may take 0.2 s"


async def test_no_timer_is_left_of_what_ends_in_time() -> None:
    bench = Bench()
    reading = await bench.begin(end_by=time.time() + 1e9)
    (stream,) = bench.client._streams.values()
    bench.say(ended(0), started=True)
    assert [delta.timeout for delta in await reading] == [None]
    assert stream._timer is not None
    assert stream._timer.cancelled()
    assert bench.child.commands == ["Add"]


async def test_a_first_token_waits_for_few_of_the_others() -> None:
    """A step's news for 100 others came just before it."""
    bench = Bench()
    told: list[str] = []

    async def read(name: str) -> None:
        request = EngineRequest(name, [1, 2], SamplingParams(max_tokens=1000), 0.0)
        async for delta in bench.client.generate(request):
            told.append(f"{name}: {delta.text}")

    names = [str(number) for number in range(100)]
    tasks = [asyncio.create_task(read(name)) for name in [*names, "new"]]
    await asyncio.sleep(0)
    bench.say(*(OutputDelta(name, 0, "a") for name in names))
    await asyncio.sleep(0)
    assert len(told) == 100, "first tokens all come at once"
    bench.say(*(OutputDelta(name, 0, "b") for name in names))
    bench.say(OutputDelta("new", 0, "first"))
    for _ in range(2 * 100 // READERS_A_TURN):
        await asyncio.sleep(0)
    assert len(told) == 201
    assert told.index("new: first") - 100 <= READERS_A_TURN
    assert [each for each in told[100:] if each != "new: first"] == [f"{name}: b" for name in names]
    bench.say(*(OutputDelta(name, 0, finish_reason="stop") for name in [*names, "new"]))
    await asyncio.gather(*tasks)
