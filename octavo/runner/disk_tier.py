"""Blocks on their way between the KV memory and the disk tier's file, as plans say."""

import logging
from collections.abc import Sequence

import torch

from octavo.core.step import DiskMoves
from octavo.kernels.interface import KVLayer
from octavo.runner.slot_file import SlotFile

logger = logging.getLogger(__name__)


class DamagedSlotError(Exception):
    """A slot does not hold the block that it should. The step that wanted it fails, and is tried again without."""


class DiskStore:
    """Carries out the ``disk`` part of plans. A block's bytes are those of its ``KVLayer`` entries, in their order:
    of each layer slot keys, values and, where there are some, their scales."""

    def __init__(self, file: SlotFile, slots: Sequence[KVLayer], host_slots: Sequence[KVLayer]) -> None:
        """``slots``, ``host_slots``: the pool's memory and the host pool's, of the same kind."""
        self._file = file
        self._memory = torch.frombuffer(file.memory, dtype=torch.uint8)
        self._device, self._host = _as_bytes(slots), _as_bytes(host_slots)

    def write(self, moves: DiskMoves) -> None:
        """Before anything else of a plan: it reads blocks that the plan overwrites."""
        for slot in moves.drops:
            self._file.erase(slot)
        for block_id, on_host, slot, name, age_rank in moves.writes:
            self._file.erase(slot)
            start = self._file.first_byte(slot)
            for rows in self._host if on_host else self._device:
                end = start + rows.shape[1]
                self._memory[start:end] = rows[block_id]
                start = end
            self._file.seal(slot, name, age_rank)
        for slot, age_rank in moves.ranks:
            self._file.rank(slot, age_rank)

    def read(self, moves: DiskMoves) -> None:
        """After what reads the blocks that are filled here.

        Raises:
            DamagedSlotError: contents are not what they should be, so that the step must not compute.
        """
        for slot, name, block_id in moves.reads:
            if not self._file.holds(slot, name):
                logger.warning("Slot %d of the prefix cache on disk is damaged; its tokens are computed again.", slot)
                raise DamagedSlotError(f"slot {slot} does not hold the block that it should")
            start = self._file.first_byte(slot)
            for rows in self._device:
                end = start + rows.shape[1]
                rows[block_id] = self._memory[start:end]
                start = end

    def close(self) -> None:
        del self._memory  # before its bytes go
        self._file.close()


def _as_bytes(layers: Sequence[KVLayer]) -> list[torch.Tensor]:
    """The memory as uint8 [num_blocks, bytes of the tensor a block], one a tensor."""
    return [tensor.view(len(tensor), -1).view(torch.uint8) for layer in layers for tensor in layer.tensors]
