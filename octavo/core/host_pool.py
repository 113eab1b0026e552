"""The host pool: where blocks go when the device has no room for them, and from where they come back by copy.

It serves two: sequences that were swapped out, whose blocks it keeps until they run again or end; and the prefix
cache, whose evicted blocks it keeps as long as there is room (least recently used leaves first).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.core.pool import BlockPool
from octavo.core.step import BlockCopy


@dataclass(slots=True)
class Moves:
    """Copies between the pools that one plan makes: ``swap_outs`` from device to host, read before anything is
    written; ``swap_ins`` from host to device. ``named``: blocks of the host pool that ``swap_outs`` fill for the prefix
    cache, and the names of their contents."""

    swap_outs: list[BlockCopy] = field(default_factory=list)
    swap_ins: list[BlockCopy] = field(default_factory=list)
    named: dict[int, bytes] = field(default_factory=dict)


class HostPool:
    """Blocks in the host's memory, and the moves that the next plan will make.

    Contents arrive when the plan that brings them has landed. ``keeps_evicted``: is it a tier of the prefix cache?
    """

    def __init__(self, num_blocks: int, keeps_evicted: bool) -> None:
        self.pool = BlockPool(num_blocks)
        self.keeps_evicted = keeps_evicted and num_blocks > 0
        self.num_swapped_out = 0
        self.num_swapped_in = 0
        self._moves = Moves()
        self._in_flight: deque[tuple[int, Moves]] = deque()

    @property
    def held_blocks(self) -> list[int]:
        """Blocks that moves read or fill, one entry a hold."""
        every = [self._moves, *(moves for _, moves in self._in_flight)]
        return [block_id for moves in every for block_id in (*moves.named, *(copy.source for copy in moves.swap_ins))]

    def take(self, device_ids: Sequence[int]) -> list[int] | None:
        """Blocks of a sequence go out; they belong to the caller. None, and nothing done, where there is no room."""
        if len(device_ids) > self.pool.num_free:
            return None
        host_ids = self.pool.allocate(len(device_ids))
        self._moves.swap_outs += map(BlockCopy, device_ids, host_ids)
        self.num_swapped_out += len(host_ids)
        return host_ids

    def give(self, host_ids: Sequence[int], device_ids: Sequence[int]) -> None:
        """Contents come back into blocks of the device. The caller has acquired the host's blocks for this; they are
        released when the move is done."""
        self._moves.swap_ins += map(BlockCopy, host_ids, device_ids)
        self.num_swapped_in += len(host_ids)

    def keep_evicted(self, device_ids: list[int], names: list[bytes]) -> None:
        """Contents of the prefix cache that the device drops, those worth least first: the best of them are kept."""
        count = min(len(device_ids), self.pool.num_free)
        missing = (
            [
                (device_id, name)
                for device_id, name in zip(device_ids, names, strict=True)
                if self.pool.lookup(name) is None
            ][-count:]
            if count
            else []
        )
        host_ids = self.pool.allocate(len(missing))
        for (device_id, name), host_id in zip(missing, host_ids, strict=True):
            self._moves.swap_outs.append(BlockCopy(device_id, host_id))
            self._moves.named[host_id] = name
        self.num_swapped_out += len(missing)

    def issue(self, step_id: int) -> Moves:
        """The moves that plan ``step_id`` makes."""
        moves, self._moves = self._moves, Moves()
        self._in_flight.append((step_id, moves))
        return moves

    def land(self, step_id: int) -> None:
        """The moves of a step, and of steps before it, are done."""
        while self._in_flight and self._in_flight[0][0] <= step_id:
            moves = self._in_flight.popleft()[1]
            self.pool.publish(list(moves.named), list(moves.named.values()))
            self._let_go(moves)

    def roll_back(self) -> set[int]:
        """The steps in flight have failed: returns the blocks that they were to fill. Nobody knows what these hold."""
        lost: set[int] = set()
        while self._in_flight:
            moves = self._in_flight.popleft()[1]
            lost.update(copy.target for copy in moves.swap_outs)
            self._let_go(moves)
        return lost

    def forget_cached(self) -> None:
        """Drop what is kept for the prefix cache, and what was to be."""
        for moves in (self._moves, *(moves for _, moves in self._in_flight)):
            self.pool.release(moves.named)
            moves.named.clear()
        self.pool.forget_all()

    def _let_go(self, moves: Moves) -> None:
        """Children before their parents, so that leaves are evicted first: so they were evicted, against how they were
        looked up."""
        self.pool.release(moves.named)
        self.pool.release(copy.source for copy in reversed(moves.swap_ins))
