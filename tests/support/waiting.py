"""Waiting for what another process does: long enough for any machine under any load, and no longer than it takes.

What a test waits for must not come about by itself within that time: a request that a test wants aborted, say, takes
longer.
"""

import asyncio
import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds for what takes a few at most on a machine that has nothing else to do."""


def wait_until(condition: Callable[[], object], told: str = "") -> None:
    """Returns when ``condition()`` holds. Raises AssertionError with ``told`` where it has not within PATIENCE."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, told
        time.sleep(0.02)


async def until(condition: Callable[[], object], told: str = "") -> None:
    """The same beside what else this event loop does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, told
        await asyncio.sleep(0.02)
