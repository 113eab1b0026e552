"""The host pool: where blocks go when the device has no room for them, and from where they come back by copy.

It serves two: sequences that were swapped out, whose blocks it keeps until they run again or end; and the prefix
cache, whose evicted blocks it keeps as long as there is room (least recently used leaves first). What it has no room
for goes on to the disk tier, if there is one.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from octavo.core.disk_tier import DiskTier
from octavo.core.pool import BlockPool
from octavo.core.step import NO_DISK_MOVES, BlockCopy, DiskMoves


@dataclass(slots=True)
class Moves:
    """Copies between the pools that one plan makes: ``swap_outs`` from device to host, read before anything is
    written; ``swap_ins`` from host to device; ``disk``, to and from the disk tier. ``named``: blocks of the host pool
    that ``swap_outs`` fill for the prefix cache, and the names of their contents; ``kept``: these, and those that held
    already what the device dropped, in the order in which it did."""

    swap_outs: list[BlockCopy] = field(default_factory=list)
    swap_ins: list[BlockCopy] = field(default_factory=list)
    disk: DiskMoves = NO_DISK_MOVES
    named: dict[int, bytes] = field(default_factory=dict)
    kept: list[int] = field(default_factory=list)


class HostPool:
    """Blocks in the host's memory, and the moves that the next plan will make.

    Contents arrive when the plan that brings them has landed. ``keeps_evicted``: is it a tier of the prefix cache?
    ``disk``: the tier below it, which may have no slots.
    """

    def __init__(self, num_blocks: int, keeps_evicted: bool, disk: DiskTier) -> None:
        self.disk = disk
        self.pool = BlockPool(num_blocks, on_evict=partial(disk.keep, on_host=True))
        self.keeps_evicted = keeps_evicted and num_blocks > 0
        self.num_swapped_out = 0
        self.num_swapped_in = 0
        self._moves = Moves()
        self._in_flight: deque[tuple[int, Moves]] = deque()

    @property
    def takes_evicted(self) -> bool:
        """Is there a place for what the device's part of the prefix cache evicts?"""
        return self.keeps_evicted or self.disk.pool.num_blocks > 0

    @property
    def held_blocks(self) -> list[int]:
        """Blocks that moves read or fill, one entry a hold."""
        sources = [copy.source for moves in self._unlanded for copy in moves.swap_ins]
        return [*sources, *(block_id for moves in self._unlanded for block_id in moves.kept)]

    @property
    def num_cached(self) -> int:
        """Blocks that the prefix cache has here, or will have when moves have landed."""
        return self.pool.num_named + sum(len(moves.named) for moves in self._unlanded)

    @property
    def num_swapped(self) -> int:
        """Blocks of sequences that were swapped out, or are on their way back."""
        num_worthless = self.pool.num_free - self.pool.num_cached
        return self.pool.num_blocks - num_worthless - self.num_cached

    @property
    def _unlanded(self) -> list[Moves]:
        return [self._moves, *(moves for _, moves in self._in_flight)]

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
        """Contents of the prefix cache that the device drops, those worth least first: the best of them are kept, the
        others go on to the disk tier."""
        known = {name: host_id for name in names if (host_id := self.pool.lookup(name)) is not None}
        self.pool.acquire(known.values())
        missing = [(device_id, name) for device_id, name in zip(device_ids, names, strict=True) if name not in known]
        num_left = max(0, len(missing) - self.pool.num_free) if self.keeps_evicted else len(missing)
        left, kept = missing[:num_left], missing[num_left:]
        self.disk.keep([device_id for device_id, _ in left], [name for _, name in left], on_host=False)
        host_ids = self.pool.allocate(len(kept))
        for (device_id, name), host_id in zip(kept, host_ids, strict=True):
            self._moves.swap_outs.append(BlockCopy(device_id, host_id))
            self._moves.named[host_id] = name
            known[name] = host_id
        self._moves.kept += (known[name] for name in names if name in known)
        self.num_swapped_out += len(kept)

    def issue(self, step_id: int) -> Moves:
        """The moves that plan ``step_id`` makes."""
        moves = self._moves
        moves.disk = self.disk.issue(step_id)
        if moves.swap_outs or moves.swap_ins or moves.kept:
            self._moves = Moves()
            self._in_flight.append((step_id, moves))
        return moves

    def land(self, step_id: int) -> None:
        """The moves of a step, and of steps before it, are done."""
        self.disk.land(step_id)
        while self._in_flight and self._in_flight[0][0] <= step_id:
            moves = self._in_flight.popleft()[1]
            self.pool.publish(list(moves.named), list(moves.named.values()))
            self._let_go(moves)

    def roll_back(self) -> set[int]:
        """The steps in flight have failed: returns the blocks that they were to fill. Nobody knows what these hold.

        What they brought in from the cache is forgotten: a request that makes every step fail would have it brought in
        again and again, and never be found out (those who begin in a step are not tried alone)."""
        self.disk.roll_back()
        lost: set[int] = set()
        while self._in_flight:
            moves = self._in_flight.popleft()[1]
            lost.update(copy.target for copy in moves.swap_outs)
            self.pool.forget(copy.source for copy in moves.swap_ins)
            self._let_go(moves)
        return lost

    def forget_cached(self) -> None:
        """Drop what is kept for the prefix cache, and what was to be, on disk too."""
        for moves in self._unlanded:
            self.pool.release(moves.kept)
            moves.kept.clear()
            moves.named.clear()
        self.pool.forget_all()
        self.disk.forget_cached()

    def _let_go(self, moves: Moves) -> None:
        """Children before their parents, so that leaves are evicted first: so they were evicted, against how they were
        looked up."""
        self.pool.release(moves.kept)
        self.pool.release(copy.source for copy in reversed(moves.swap_ins))
