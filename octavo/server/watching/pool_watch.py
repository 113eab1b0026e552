"""One pair of eyes for all who watch the pool: the engine is asked rarely enough that watching costs it next to
nothing, however many pages are open and however large the pool is."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from math import inf

from octavo.engine.looks import EventLook, Look, StepLook
from octavo.engine.watch import MAX_EVENTS, MAX_STEPS

LEAST_SECONDS = 0.25
"""Between two looks."""

MOST_OF_ENGINE = 1 / 250
"""Of the engine's time, for looks: what they take besides, to be written and sent, is less than they take."""


class PoolWatch:
    """``take_look``: asks the engine; ``clock``: seconds that only grow. Nobody who asks makes the engine look sooner
    than it is due."""

    def __init__(self, take_look: Callable[[], Awaitable[Look]], clock: Callable[[], float]) -> None:
        self._take_look = take_look
        self._clock = clock
        self._lock = asyncio.Lock()
        self._look: Look | None = None
        self._due = -inf
        self._last_seconds = inf
        self._steps: deque[tuple[int, StepLook]] = deque(maxlen=MAX_STEPS)
        self._events: deque[tuple[int, EventLook]] = deque(maxlen=MAX_EVENTS)
        self.num_looks = 0
        self.interval = LEAST_SECONDS
        """Seconds after which another look makes sense."""

    async def look(self) -> Look:
        """The engine as it was at most ``interval`` seconds ago.

        Raises:
            EngineDeadError: it is gone.
        """
        async with self._lock:
            if self._look is None or self._clock() >= self._due:
                self._take(await self._take_look())
            assert self._look is not None
            return self._look

    def _take(self, look: Look) -> None:
        self._look = look
        self.num_looks += 1
        # The lesser of two: one of them may be so long only since other processes had the engine's core.
        seconds, self._last_seconds = min(look.seconds, self._last_seconds), look.seconds
        self.interval = max(LEAST_SECONDS, seconds / MOST_OF_ENGINE)
        self._due = self._clock() + self.interval
        self._steps += ((self.num_looks, step) for step in look.steps)
        self._events += ((self.num_looks, event) for event in look.events)

    def steps_after(self, num_looks: int) -> list[StepLook]:
        """Those that looks after the first ``num_looks`` brought, as far back as they are kept."""
        return [step for number, step in self._steps if number > num_looks]

    def events_after(self, num_looks: int) -> list[EventLook]:
        """As ``steps_after``."""
        return [event for number, event in self._events if number > num_looks]
