"""Who of several servers gets a request."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from octavo.core.request import Request
from octavo.sim.replica import Replica

STRIDE = 16
"""A router looks at every such token of a prompt: the requests of a simulation have one name for each of a block's."""

MAX_KNOWN = 1 << 20
"""Prefixes that a router remembers; those go first that came longest ago."""

SPARE_LOAD, LOAD_FACTOR = 4, 1.5
"""A server that knows the prefix is passed over when its load is above so many times the least, and so many more."""


class Router(Protocol):
    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:
        """Which of them gets it; called once for each request, as it arrives."""
        ...


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, _request: Request, replicas: Sequence[Replica]) -> int:
        place, self._next = self._next, (self._next + 1) % len(replicas)
        return place


class LeastLoaded:
    """Where the fewest requests are; the first of equals."""

    def choose(self, _request: Request, replicas: Sequence[Replica]) -> int:
        return least_loaded(replicas)


class PrefixAware:
    """Where the longest part of the prompt went before, unless that server has much more to do than another; then, and
    where no part of it is known, where the fewest requests are. The router remembers where it sent what; it does not
    know what servers have evicted."""

    def __init__(self, max_known: int = MAX_KNOWN) -> None:
        self._places: OrderedDict[int, int] = OrderedDict()
        self._max_known = max_known

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:
        names = list(_prefix_names(request))
        least = least_loaded(replicas)
        known = next((self._places[name] for name in reversed(names) if name in self._places), least)
        place = known if replicas[known].load <= LOAD_FACTOR * replicas[least].load + SPARE_LOAD else least
        for name in names:
            self._places[name] = place
            self._places.move_to_end(name)
        while len(self._places) > self._max_known:
            self._places.popitem(last=False)
        return place


def least_loaded(replicas: Sequence[Replica]) -> int:
    return min(range(len(replicas)), key=lambda place: replicas[place].load)


def _prefix_names(request: Request) -> Iterator[int]:
    """One for each longer part of the prompt."""
    name = 0
    for start in range(0, request.num_prompt_tokens, STRIDE):
        name = hash((name, request.token_ids[start]))
        yield name


LEAST_LOADED = "least-loaded"

ROUTERS: dict[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    LEAST_LOADED: LeastLoaded,
    "prefix-aware": PrefixAware,
}
