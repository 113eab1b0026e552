"""An engine that has ended and is started again, as often as that may be."""

import logging
from collections import deque
from collections.abc import Callable

from octavo.core.errors import ConfigurationError
from octavo.engine.process import EngineFactory
from octavo.server.state import Phase, ServerState

logger = logging.getLogger(__name__)

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


async def outlive(state: ServerState, factory: EngineFactory, budget: RestartBudget) -> str:
    """Start another engine whenever one has ended, as long as ``budget`` lasts; then ``state`` is dead. Returns how the
    last one ended."""
    while True:
        await state.engine.child.dead.wait()
        ending = f"The engine process ended with code {state.engine.child.exit_code}"
        if not await _restarted(state, factory, budget, ending):
            state.phase = Phase.DEAD
            return ending


async def _restarted(state: ServerState, factory: EngineFactory, budget: RestartBudget, ending: str) -> bool:
    """Is there another engine now? Its predecessor's requests have been told that they are lost."""
    while state.phase in (Phase.READY, Phase.RESTARTING) and budget.take():
        state.phase = Phase.RESTARTING
        state.metrics.count_engine_restart()
        logger.error("%s; another one is started (at most %d in ten minutes).", ending, budget.limit)
        try:
            await state.engine.restart(factory)
        except ConfigurationError as error:
            ending = str(error).rstrip(".")
            continue
        if state.phase is Phase.RESTARTING:
            state.phase = Phase.READY
            logger.info("The engine runs again.")
        return True
    return False
