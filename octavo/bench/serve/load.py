"""The open loop: requests leave when they are due, whatever has become of those before."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import uvloop

from octavo.bench.serve.exchange import Answer, Target, ask
from octavo.bench.serve.workload import Planned


@dataclass(frozen=True, slots=True)
class Run:
    """``answers`` in order of arrival, ``start`` on the same clock, and what the load generator itself spent."""

    answers: Sequence[Answer]
    start: float
    cpu_seconds: float

    @property
    def seconds(self) -> float:
        """From the first arrival to the last end."""
        return max(answer.end for answer in self.answers) - self.start


def send_all(
    target: Target,
    plan: Sequence[Planned],
    max_concurrency: int | None = None,
    on_end: Callable[[], object] = lambda: None,
) -> Run:
    """Send every request when it is due, and wait for all answers.

    ``max_concurrency``: a request that would be one too many waits here; that time is part of its latency, since its
    client waits as well.
    """
    return uvloop.run(_send_all(target, plan, max_concurrency, on_end))


async def _send_all(
    target: Target, plan: Sequence[Planned], max_concurrency: int | None, on_end: Callable[[], object]
) -> Run:
    places = nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    payloads = [target.payload(planned) for planned in plan]  # before the clock runs
    answers = [Answer(planned.seconds) for planned in plan]

    async def one(payload: bytes, answer: Answer) -> None:
        async with places:
            await ask(target, payload, answer)
        on_end()

    cpu_start, start = time.process_time(), time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for payload, answer in zip(payloads, answers, strict=True):
            answer.due += start
            while (wait := answer.due - time.perf_counter()) > 0:  # noqa: ASYNC110  # timers are early at times
                await asyncio.sleep(wait)
            tasks.create_task(one(payload, answer))
    await asyncio.sleep(0)  # the last connections are closed
    return Run(answers, start, time.process_time() - cpu_start)
