"""The disk tier's file without a file: it outlives a runner, and slots of it can be damaged."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.core.disk_tier import StoredBlock
from octavo.core.step import DiskMoves

Memory = dict[int, tuple[int, int]]
"""slot of a token -> (position, token id)"""


@dataclass
class _Slot:
    """``cells``: one list a memory, of what its tokens' slots hold."""

    name: bytes
    age_rank: int
    cells: list[list[tuple[int, int] | None]]


@dataclass
class FakeDisk:
    slots: dict[int, _Slot] = field(default_factory=dict)
    num_damaged_reads: int = 0

    def stored(self) -> list[StoredBlock]:
        return [StoredBlock(number, slot.name, slot.age_rank) for number, slot in self.slots.items()]

    def damage(self, number: int) -> None:
        self.slots[number].name = b"damaged"

    def write(self, moves: DiskMoves, device: Sequence[Memory], host: Sequence[Memory], block_size: int) -> None:
        for number in moves.drops:
            self.slots.pop(number, None)
        for block_id, on_host, number, name, age_rank in moves.writes:
            places = range(block_id * block_size, (block_id + 1) * block_size)
            cells = [[memory.get(place) for place in places] for memory in (host if on_host else device)]
            self.slots[number] = _Slot(name, age_rank, cells)
        for number, age_rank in moves.ranks:
            if number in self.slots:
                self.slots[number].age_rank = age_rank

    def read(self, moves: DiskMoves, device: Sequence[Memory], block_size: int) -> None:
        for number, name, block_id in moves.reads:
            slot = self.slots.get(number)
            if slot is None or slot.name != name:
                self.num_damaged_reads += 1
                raise RuntimeError(f"slot {number} is damaged")
            for memory, cells in zip(device, slot.cells, strict=True):
                for place, cell in enumerate(cells, block_id * block_size):
                    memory.pop(place, None)
                    if cell is not None:
                        memory[place] = cell
