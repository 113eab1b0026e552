"""The disk tier of the prefix cache: blocks that memory has no room for any more, found again after a restart.

Which contents lie in which slot of a file is decided here; the runner owns the file and does as plans say. What is in
the file is worth what the name of each slot says, whoever wrote it: names are chained hashes (see BlockHasher).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.core.pool import BlockPool
from octavo.core.step import NO_DISK_MOVES, DiskMoves, DiskRead, DiskWrite, SlotRank


class StoredBlock(NamedTuple):
    """What a slot holds at start. ``age_rank``: the lower, the longer unused."""

    slot: int
    name: bytes
    age_rank: int


class _Source(NamedTuple):
    """Where contents lie that memory is about to drop."""

    block_id: int
    on_host: bool


@dataclass(slots=True)
class _Flight:
    """Moves on their way. ``named``: what slots hold once these have landed; ``holds``: slots held until then, children
    before their parents."""

    step_id: int
    moves: DiskMoves
    named: dict[int, bytes] = field(default_factory=dict)
    holds: list[int] = field(default_factory=list)


class DiskTier:
    """Slots of a file, and the moves that the next plan will make; least recently used leaves make room.

    Contents arrive when the plan that brings them has landed.
    """

    def __init__(self, num_slots: int) -> None:
        self.pool = BlockPool(num_slots)
        """Its blocks are the slots."""
        self.num_written = 0
        self.num_read = 0
        self._dropped: dict[bytes, _Source] = {}  # by memory since the last plan, those worth least first
        self._reads: list[DiskRead] = []
        self._drops: list[int] = []
        self._next_rank = 0
        self._in_flight: deque[_Flight] = deque()

    @property
    def held_slots(self) -> list[int]:
        """Slots that moves read or fill, one entry a hold."""
        return [slot for flight in self._in_flight for slot in flight.holds] + [read.slot for read in self._reads]

    def load(self, stored: Iterable[StoredBlock]) -> None:
        """Take in what an earlier process left in the file. Called once, before anything else."""
        by_age = sorted(stored, key=lambda block: block.age_rank)
        slots = [block.slot for block in by_age]
        self._next_rank = by_age[-1].age_rank + 1 if by_age else 0
        every = self.pool.allocate(self.pool.num_blocks)
        self.pool.publish(slots, [block.name for block in by_age])
        self.pool.release(set(every).difference(slots))
        self.pool.release(slots)

    def keep(self, block_ids: Sequence[int], names: Sequence[bytes], on_host: bool) -> None:
        """Contents of the prefix cache that memory drops, those worth least first: as many of the best are kept as
        there are slots."""
        if not self.pool.num_blocks:
            return
        for block_id, name in zip(block_ids, names, strict=True):
            self._dropped.pop(name, None)  # what is dropped twice is worth what it is the second time
            self._dropped[name] = _Source(block_id, on_host)

    def give(self, slots: Sequence[int], block_ids: Sequence[int]) -> None:
        """Contents of a chain come back into blocks of the device. The caller has acquired the slots for this; they are
        released when the move is done."""
        for slot, block_id in zip(slots, block_ids, strict=True):
            name = self.pool.names[slot]
            assert name is not None, "slots that are read have been found by name"
            self._reads.append(DiskRead(slot, name, block_id))
        self.num_read += len(slots)

    def issue(self, step_id: int) -> DiskMoves:
        """The moves that plan ``step_id`` makes."""
        if not (self._dropped or self._reads or self._drops):
            return NO_DISK_MOVES
        flight = _Flight(step_id, NO_DISK_MOVES)
        known = {name: slot for name in self._dropped if (slot := self.pool.lookup(name)) is not None}
        self.pool.acquire(known.values())
        missing = [name for name in self._dropped if name not in known]
        missing = missing[max(0, len(missing) - self.pool.num_free) :]
        flight.named = dict(zip(self.pool.allocate(len(missing)), missing, strict=True))
        writes, ranks = self._place(flight, known)
        for read in reversed(self._reads):  # children before their parents, against how they were looked up
            flight.holds.append(read.slot)
            ranks.append(SlotRank(read.slot, self._take_rank()))
        flight.moves = DiskMoves(tuple(self._drops), tuple(reversed(writes)), tuple(ranks), tuple(self._reads))
        self._dropped, self._reads, self._drops = {}, [], []
        self._in_flight.append(flight)
        return flight.moves

    def _place(self, flight: _Flight, known: dict[bytes, int]) -> tuple[list[DiskWrite], list[SlotRank]]:
        """Rank what memory dropped, in its order, whether it has to be written or is there (``known``) already: a
        parent stays ranked above its children."""
        slots = known | {name: slot for slot, name in flight.named.items()}
        writes: list[DiskWrite] = []
        ranks: list[SlotRank] = []
        for name, source in self._dropped.items():
            slot = slots.get(name)
            if slot is None:
                continue
            flight.holds.append(slot)
            rank = self._take_rank()
            if name in known:
                ranks.append(SlotRank(slot, rank))
            else:
                writes.append(DiskWrite(source.block_id, source.on_host, slot, name, rank))
        self.num_written += len(writes)
        return writes, ranks

    def land(self, step_id: int) -> None:
        """The moves of a step, and of steps before it, are done."""
        while self._in_flight and self._in_flight[0].step_id <= step_id:
            flight = self._in_flight.popleft()
            self.pool.publish(list(flight.named), list(flight.named.values()))
            self.pool.release(flight.holds)

    def roll_back(self) -> None:
        """The steps in flight have failed, perhaps because a slot did not hold what it should: what they read is
        forgotten, so that it is computed when the requests are tried again."""
        while self._in_flight:
            flight = self._in_flight.popleft()
            read = [read.slot for read in flight.moves.reads]
            self.pool.forget(read)
            self._drops += [*flight.moves.drops, *flight.named, *read]
            self.pool.release(flight.holds)

    def forget_cached(self) -> None:
        """Drop all contents, and those on their way."""
        self._dropped.clear()
        self._drops = list(range(self.pool.num_blocks))  # a slot without a name may have one in the file
        for flight in self._in_flight:
            flight.named.clear()
        self.pool.forget_all()

    def _take_rank(self) -> int:
        self._next_rank += 1
        return self._next_rank - 1
