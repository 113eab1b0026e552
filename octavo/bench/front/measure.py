"""The measurements: many streams at once, and the time to the first event of one."""

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import uvloop

from octavo.bench.front.cases import PROMPT, Case
from octavo.bench.front.engine import FrontEngineOptions, front_engine
from octavo.bench.front.load import Connection, connect, events_of, request_bytes, words_of
from octavo.bench.front.process import Server, running
from octavo.core.errors import ConfigurationError
from octavo.core.sampling_params import SamplingParams
from octavo.engine.client import AsyncEngineClient
from octavo.engine.messages import EngineRequest
from octavo.engine.steady_clock import steady_time

STEPS_IN_FLIGHT = 1
"""How far the engine is ahead of what the client has got. With more the server joins tokens that it finds waiting,
which is less work a token than what is to be measured; with one it waits for the client now and then."""
MARGIN = 0.1
"""The share of all tokens that is left out at both ends: requests that come in, streams that end."""


PAUSE_SECONDS = 0.011
"""Between two first events: not a multiple of anything."""
WARM_UP = 5
"""First requests that are not counted: processes are started for templates, caches are filled."""


class Cores(NamedTuple):
    server: int
    others: int


class Reading(NamedTuple):
    tokens: int
    seconds: float
    cpu_seconds: float


class _Meter:
    """Counts tokens as they come; lets the engine go on, and reads the clocks at both ends of the part that counts."""

    def __init__(self, server: Server, num_streams: int, num_words: int, credits_pipe: int | None) -> None:
        self._server = server
        self._num_streams = num_streams
        self._credits_pipe = credits_pipe
        total = num_streams * num_words
        self._marks = [round(total * MARGIN), round(total * (1 - MARGIN))]
        self._steps = 0
        self.tokens = 0
        self.readings: list[Reading] = []

    def add(self, tokens: int) -> None:
        self.tokens += tokens
        while self._marks and self.tokens >= self._marks[0]:
            del self._marks[0]
            self.readings.append(Reading(self.tokens, time.perf_counter(), self._server.cpu_seconds()))
        steps = self.tokens // self._num_streams
        if steps > self._steps and self._credits_pipe is not None:
            os.write(self._credits_pipe, bytes(steps - self._steps))
            self._steps = steps

    def figures(self) -> dict[str, object]:
        """
        Raises:
            ConfigurationError: all came at once.
        """
        first, last = self.readings
        tokens, seconds, cpu = (after - before for before, after in zip(first, last, strict=True))
        if not cpu:
            raise ConfigurationError("so few tokens take no time; ask for more")
        return {
            "tokens_per_second": tokens / seconds,
            "tokens_per_cpu_second": tokens / cpu,
            "cpu_us_per_token": 1e6 * cpu / tokens,
            "core_percent": 100 * cpu / seconds,
        }


def throughput(cases: Sequence[Case], cores: Cores, num_streams: int, num_tokens: int) -> list[dict[str, object]]:
    """Figures of ``num_streams`` streams of ``num_tokens`` tokens each, as fast as the server can. ``cases`` are of one
    server and engine.

    Raises:
        ConfigurationError: a token is missing, or is out of its place.
    """
    rows = []
    with TemporaryDirectory() as folder:
        path = Path(folder, "credits")
        os.mkfifo(path)
        pipe = os.open(path, os.O_RDWR)
        os.write(pipe, bytes(STEPS_IN_FLIGHT))
        engine = {"num_streams": num_streams, "credits_path": str(path)}
        with running(_options(cases[0], cores, engine)) as server:
            for case in cases:
                num_words = num_tokens - len(case.opening)
                os.write(pipe, bytes(len(case.opening)))  # steps that bring no word
                meter = _Meter(server, num_streams, num_words, pipe)
                answers = uvloop.run(_stream_all(server, case, meter, num_streams, num_tokens))
                num_events = sum(_check(answer, num_words) for answer in answers)
                share = num_events / (num_streams * num_words)
                rows.append({"what": case.name, **meter.figures(), "events_per_token": share})
        os.close(pipe)
    return rows


def limit(cores: Cores, num_streams: int, num_tokens: int) -> dict[str, object]:
    """The same of a bare server that writes constant events."""
    case = Case("a bare server, constant events", "/", {})
    with running({"core": cores.server, "limit": True}) as server:
        meter = _Meter(server, num_streams, num_tokens, None)
        answers = uvloop.run(_stream_all(server, case, meter, num_streams, num_tokens))
    num_events = sum(len(events_of(answer)) for answer in answers)
    return {"what": case.name, **meter.figures(), "events_per_token": num_events / (num_streams * num_tokens)}


def _check(answer: bytes, num_words: int) -> int:
    """How many events brought the words, all of them in order."""
    numbers, num_events = words_of(events_of(answer))
    if numbers != list(range(num_words)):
        raise ConfigurationError(f"of {num_words} words in order, {len(numbers)} came: {numbers[:20]} ...")
    return num_events


async def _stream_all(server: Server, case: Case, meter: _Meter, num_streams: int, num_tokens: int) -> list[bytes]:
    connections = [await connect(server.port, meter.add) for _ in range(num_streams)]
    request = _request(case, num_tokens)
    answers = await asyncio.gather(*(connection.send(request) for connection in connections))
    for connection in connections:
        connection.close()
    return answers


def _request(case: Case, num_tokens: int) -> bytes:
    fields: dict[str, Any] = {"model": "front", "max_tokens": num_tokens, "stream": True, "temperature": 0.0}
    return request_bytes(case.path, fields | dict(case.fields))


def _options(case: Case, cores: Cores, engine: dict[str, Any]) -> dict[str, Any]:
    found = engine | {"core": cores.others, "opening": case.opening}
    return {"core": cores.server, "settings": dict(case.settings), "engine": found}


class Background(NamedTuple):
    """Streams that are answered while first tokens are timed. 0: none."""

    num_streams: int
    tokens_per_second: float

    @property
    def step_seconds(self) -> float:
        return self.num_streams / self.tokens_per_second if self.num_streams else 0.0

    @property
    def max_tokens(self) -> int:
        return 16000


class FirstEvents(NamedTuple):
    """Seconds from each request to the first event of its answer, and those of the server's CPU in all that time."""

    seconds: list[float]
    cpu_seconds: float


def first_events(case: Case, cores: Cores, backgrounds: Sequence[Background], repeats: int) -> Iterator[FirstEvents]:
    """As a client sees it over a connection that is open; beside each of ``backgrounds``, of one pace."""
    engine = {"step_seconds": max(background.step_seconds for background in backgrounds)}
    with running(_options(case, cores, engine)) as server:
        for background in backgrounds:
            yield uvloop.run(_time_first_events(server, case, background, repeats))


async def _time_first_events(server: Server, case: Case, background: Background, repeats: int) -> FirstEvents:
    others = [await connect(server.port, _ignore) for _ in range(background.num_streams)]
    for connection in others:
        connection.send(_request(case, background.max_tokens))
    connection, request = await connect(server.port, _ignore), _request(case, len(case.opening) + 1)
    for _ in range(WARM_UP):
        await _first_event(connection, request)
    cpu = server.cpu_seconds()
    seconds = [await _first_event(connection, request) for _ in range(repeats)]
    cpu = server.cpu_seconds() - cpu
    for each in (*others, connection):
        each.close()
    return FirstEvents(seconds, cpu)


async def _first_event(connection: Connection, request: bytes) -> float:
    await asyncio.sleep(PAUSE_SECONDS)
    events_of(await connection.send(request))
    return connection.first_event_seconds


def _ignore(_tokens: int) -> None:
    """What comes beside is not counted."""


def first_delta(cores: Cores, background: Background, repeats: int) -> list[float]:
    """Seconds from a request to its first delta, of the same engine called directly, on the server's core."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cores.server})
    try:
        return uvloop.run(_time_first_deltas(cores, background, repeats))
    finally:
        os.sched_setaffinity(0, mine)


async def _time_first_deltas(cores: Cores, background: Background, repeats: int) -> list[float]:
    client = AsyncEngineClient(lambda _outputs, _iterations: None, log_stats=False)
    options = FrontEngineOptions(cores.others, step_seconds=background.step_seconds)
    await client.start(partial(front_engine, options))
    others = [
        asyncio.create_task(_read(client, f"other-{index}", background.max_tokens))
        for index in range(background.num_streams)
    ]
    seconds = []
    for index in range(WARM_UP + repeats):
        await asyncio.sleep(PAUSE_SECONDS)
        seconds.append(await _read(client, f"timed-{index}", 1))
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await client.child.end()
    return seconds[WARM_UP:]


async def _read(client: AsyncEngineClient, request_id: str, max_tokens: int) -> float:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    request = EngineRequest(request_id, [1] * len(PROMPT), params, steady_time())
    start, first = time.perf_counter(), 0.0
    async with aclosing(client.generate(request)) as deltas:
        async for _ in deltas:
            first = first or time.perf_counter() - start
    return first


def milliseconds(seconds: list[float]) -> float:
    return 1000 * median(seconds)
