"""Requests that wait while another computes the very block they need next (design, Decided 2)."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat

from octavo.core.child_index import ChildMatch, common_length
from octavo.core.hashing import pack_tokens
from octavo.core.request import Request


class PrefixWaits:
    """Who is computing which block, and who waits for it. A request waits ``max_steps`` steps for a block at most;
    each one that lands brings it on, so that it may wait as long for the next.

    Those whose wait is over go back in line by ``requeue``, at once: a request is never in nobody's hands.
    """

    def __init__(self, max_steps: int, requeue: Callable[[Request], None]) -> None:
        self._max_steps = max_steps
        self._requeue = requeue
        self._owners: dict[bytes, Request] = {}
        self._waiters: dict[bytes, dict[Request, None]] = {}
        self._awaited: dict[Request, bytes] = {}
        self._deadlines: deque[tuple[int, Request]] = deque()
        """Those that are over first. Of a request with several the last counts."""
        self._computing: dict[Request, None] = {}

    def claim(self, request: Request, first_block: int) -> None:
        """``request`` will compute its blocks from ``first_block`` on, except those that another is computing."""
        blocks = _blocks_in_work(request, first_block)
        _for_all(map(self._owners.setdefault, blocks, repeat(request)))
        self._computing[request] = None

    def is_awaited(self, block_hashes: Iterable[bytes]) -> bool:
        """Does anybody count as computing one of these blocks (so that ``settle`` has to be told)?"""
        return not self._owners.keys().isdisjoint(block_hashes)

    def may_wait(self, request: Request, step_id: int) -> bool:
        return request.prefix_deadline is None or step_id < request.prefix_deadline

    def nearest(self, request: Request, index: int, block_size: int) -> ChildMatch | None:
        """Of the blocks that others are computing, the one that shares most leading tokens with block ``index`` of
        ``request``, which has no full hash yet or another one."""
        start, parent = index * block_size, request.chain.parents[index]
        wanted = pack_tokens(request.token_ids[start : min(start + block_size, request.num_tokens - 1)])
        best: ChildMatch | None = None
        for owner in self._computing:
            hashes = owner.chain.hashes
            if index > len(hashes) or owner.chain.parents[index] != parent:
                continue
            block_hash = hashes[index] if index < len(hashes) else owner.tail_hash
            block = owner.token_ids[start : min(start + block_size, owner.prompt_end)]
            length = common_length(pack_tokens(block), wanted)
            in_work = block_hash is not None and self._owners.get(block_hash) is owner
            if block_hash is not None and in_work and length > (best.num_tokens if best else 0):
                best = ChildMatch(block_hash, length)
        return best

    def park(self, request: Request, block_hash: bytes, step_id: int) -> None:
        """Set ``request`` aside until the block lands, is abandoned, or the wait is over."""
        if request.prefix_deadline is None:
            request.prefix_deadline = step_id + self._max_steps
            self._deadlines.append((request.prefix_deadline, request))
        self._waiters.setdefault(block_hash, {})[request] = None
        self._awaited[request] = block_hash

    def remove(self, request: Request) -> None:
        """A parked request was aborted, or goes on."""
        block_hash = self._awaited.pop(request)
        waiters = self._waiters[block_hash]
        del waiters[request]
        if not waiters:
            del self._waiters[block_hash]

    def settle(self, block_hashes: Sequence[bytes]) -> None:
        """These blocks have landed: nobody waits for them any longer."""
        for waiter in self._let_go(block_hashes):
            waiter.prefix_deadline = None

    def abandon(self, request: Request, first_block: int) -> None:
        """``request`` will not compute its blocks from ``first_block`` on after all. Those who waited for them
        have not got on, so what they have waited counts."""
        self._computing.pop(request, None)
        blocks = _blocks_in_work(request, first_block)
        self._let_go([block_hash for block_hash in blocks if self._owners.get(block_hash) is request])

    def finish(self, request: Request) -> None:
        """``request`` has landed all that it had when it was admitted."""
        self._computing.pop(request, None)
        if request.tail_hash:
            self.settle([request.tail_hash])

    def expire(self, step_id: int) -> None:
        """Nobody waits longer than the bound."""
        while self._deadlines and self._deadlines[0][0] <= step_id:
            deadline, request = self._deadlines.popleft()
            if request in self._awaited and request.prefix_deadline == deadline:
                self._wake([request])

    def give_up(self) -> None:
        """No step runs that could bring what they wait for: nobody waits any longer, nor ever again."""
        for request in self._awaited:
            request.prefix_deadline = 0
        self._wake(list(self._awaited))

    def _let_go(self, block_hashes: Sequence[bytes]) -> list[Request]:
        """Nobody computes these blocks. Returns those who waited for them, back in line."""
        _for_all(map(self._owners.pop, block_hashes, repeat(None)))
        if self._waiters.keys().isdisjoint(block_hashes):
            return []
        waiters = [waiter for block_hash in block_hashes for waiter in self._waiters.get(block_hash, ())]
        self._wake(waiters)
        return waiters

    def _wake(self, waiters: list[Request]) -> None:
        for waiter in waiters:
            self.remove(waiter)
            self._requeue(waiter)

    def __len__(self) -> int:
        return len(self._awaited)

    def __contains__(self, request: Request) -> bool:
        return request in self._awaited

    def __iter__(self) -> Iterator[Request]:
        return iter(self._awaited)


def _blocks_in_work(request: Request, first_block: int) -> list[bytes]:
    tail = [request.tail_hash] if request.tail_hash is not None else []
    return request.chain.hashes[first_block:] + tail


def _for_all(calls: Iterable[object]) -> None:
    """Make these calls; a deque without room is the quickest loop there is."""
    deque(calls, maxlen=0)
