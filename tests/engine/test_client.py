"""The client of the engine process, with a process that says what a test says: who is told, what is ended, when."""

import asyncio
from typing import Any

import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.sampling_params import SamplingParams
from octavo.engine.client import AsyncEngineClient
from octavo.engine.codec import Command, News
from octavo.engine.messages import EngineOutputs, EngineRequest, OutputDelta


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

    async def begin(self, n: int = 1) -> "asyncio.Task[list[OutputDelta]]":
        request = EngineRequest("r", [1, 2], SamplingParams(n=n, max_tokens=1000), 0.0)

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
