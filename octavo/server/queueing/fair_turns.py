"""Turns at something of which there is little, one tenant after the other."""

import asyncio
from collections import OrderedDict, deque


class FairTurns:
    """``num_turns`` at a time; who waits gets one when the tenants before have had theirs. For one event loop."""

    def __init__(self, num_turns: int, max_waiting: int) -> None:
        self._num_free = num_turns
        self._max_waiting = max_waiting
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Of each tenant who waits, in order; the tenant at the front is next."""

    def is_full(self, tenant: str) -> bool:
        """Do so many of this tenant wait that no more should?"""
        return len(self._waiting.get(tenant, ())) >= self._max_waiting

    async def take(self, tenant: str) -> None:
        """Waits for a turn, which is to be given up later. None is had where this is cancelled."""
        if self._num_free and not self._waiting:
            self._num_free -= 1
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.cancelled():
                self._leave(tenant, mine)
            else:
                self.give_up()  # it came too late
            raise

    def give_up(self) -> None:
        """A turn is over: the next one's."""
        while self._waiting:
            tenant, line = next(iter(self._waiting.items()))
            mine = line.popleft()
            if not line:
                del self._waiting[tenant]
            if mine.cancelled():
                continue  # who waited has been told so, and has not come to leave the line yet
            if line:
                self._waiting.move_to_end(tenant)
            mine.set_result(None)
            return
        self._num_free += 1

    def _leave(self, tenant: str, mine: "asyncio.Future[None]") -> None:
        line = self._waiting.get(tenant, deque())
        if mine not in line:
            return  # its turn came, and went to the next
        line.remove(mine)
        if not line:
            del self._waiting[tenant]
