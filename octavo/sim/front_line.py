"""Requests on their way through the front of a server, before its scheduler has them."""

from heapq import heapify, heapreplace

from octavo.sim.costs import Front


class FrontLine:
    """The fronts of ``num_servers`` servers; a request goes to the one that is free first."""

    def __init__(self, front: Front, num_servers: int) -> None:
        self._front = front
        self._free = [0.0] * num_servers
        heapify(self._free)

    def pass_through(self, due: float) -> float:
        """When the scheduler has a request that is due then; to be asked in order of time. All of the delay is counted
        here, that of the first token on its way back too."""
        taken_in = max(due, self._free[0]) + self._front.per_request
        heapreplace(self._free, taken_in)
        return taken_in + self._front.delay
