"""Requests that wait while another computes the very block they need next (design, Decided 2)."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from octavo.core.request import Request


class PrefixWaits:
    """Who is computing which block, and who waits for it. A request waits ``max_steps`` steps in all at most."""

    def __init__(self, max_steps: int) -> None:
        self._max_steps = max_steps
        self._owners: dict[bytes, Request] = {}
        self._waiters: dict[bytes, dict[Request, None]] = {}
        self._awaited: dict[Request, bytes] = {}
        self._by_deadline: deque[Request] = deque()

    def claim(self, request: Request, first_block: int) -> None:
        """``request`` will compute its blocks from ``first_block`` on, except those that another is computing."""
        setdefault = self._owners.setdefault
        for block_hash in request.block_hashes[first_block:]:
            setdefault(block_hash, request)

    def is_awaited(self, block_hashes: Iterable[bytes]) -> bool:
        """Does anybody count as computing one of these blocks (so that ``settle`` has to be told)?"""
        return not self._owners.keys().isdisjoint(block_hashes)

    def must_wait(self, request: Request, block_hash: bytes, step_id: int) -> bool:
        """Is another computing this block, and may ``request`` still wait for it?"""
        in_time = request.prefix_deadline is None or step_id < request.prefix_deadline
        return in_time and block_hash in self._owners

    def park(self, request: Request, block_hash: bytes, step_id: int) -> None:
        """Set ``request`` aside until the block lands, is abandoned, or the wait is over."""
        if request.prefix_deadline is None:
            request.prefix_deadline = step_id + self._max_steps
        self._waiters.setdefault(block_hash, {})[request] = None
        self._awaited[request] = block_hash
        self._by_deadline.append(request)

    def remove(self, request: Request) -> None:
        """A parked request was aborted, or goes on."""
        block_hash = self._awaited.pop(request)
        waiters = self._waiters[block_hash]
        del waiters[request]
        if not waiters:
            del self._waiters[block_hash]

    def settle(self, request: Request, block_hashes: Sequence[bytes]) -> list[Request]:
        """``request`` has landed these blocks, or gives them up: returns those who waited for one of them, parked no
        more."""
        woken: list[Request] = []
        owners = self._owners
        for block_hash in block_hashes:
            if block_hash in owners and owners[block_hash] is request:
                del owners[block_hash]
                woken += self._waiters.get(block_hash, ())
        for waiter in woken:
            self.remove(waiter)
        return woken

    def abandon(self, request: Request, first_block: int) -> list[Request]:
        """``request`` will not compute its blocks from ``first_block`` on after all; returns those who waited."""
        return self.settle(request, request.block_hashes[first_block:])

    def expire(self, step_id: int) -> list[Request]:
        """Requests whose wait is over, parked no more."""
        expired = []
        while self._by_deadline:
            request = self._by_deadline[0]
            if request in self._awaited:
                if request.prefix_deadline is not None and step_id < request.prefix_deadline:
                    break
                self.remove(request)
                expired.append(request)
            self._by_deadline.popleft()
        return expired

    def __len__(self) -> int:
        return len(self._awaited)

    def __contains__(self, request: Request) -> bool:
        return request in self._awaited

    def __iter__(self) -> Iterator[Request]:
        return iter(self._awaited)
