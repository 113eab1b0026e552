"""How often an engine that has ended may be started again."""

from collections import deque
from collections.abc import Callable

WINDOW_SECONDS = 600.0


class RestartBudget:
    """``limit`` restarts within ten minutes. What fails more often has a cause that starting again does not cure, and
    whoever supervises the server should see it end. ``clock``: seconds that only grow."""

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.limit = limit
        self._clock = clock
        self._times: deque[float] = deque()

    def take(self) -> bool:
        """Is there one more? It is taken then."""
        now = self._clock()
        while self._times and self._times[0] <= now - WINDOW_SECONDS:
            self._times.popleft()
        if len(self._times) >= self.limit:
            return False
        self._times.append(now)
        return True
