"""The inputs of steps in which the same rows compute one token each and draw the next: nearly all steps there are."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.core.step import StepPlan, TableWrite
from octavo.kernels.interface import BatchLayout
from octavo.runner.row_sampling import RowSampling
from octavo.runner.step_inputs import DrawingRows, StepInputs


class DecodeInputs:
    """Arrays that are made once for these rows and moved on in place from step to step: what is handed out is valid
    until the next step. ``tables``: of each layer group the rows' block tables, int32 [rows, blocks], the caller's
    copies, which are kept up by ``write_table``."""

    def __init__(
        self, row_ids: tuple[int, ...], states: list[RowSampling], tables: list[NDArray[np.int32]], block_size: int
    ) -> None:
        count = len(row_ids)
        self._row_ids = row_ids
        self._counts, self._samples = (1,) * count, (True,) * count
        self._places = {row_id: place for place, row_id in enumerate(row_ids)}
        self._token_lists = [state.token_ids for state in states]
        self._block_size = block_size
        self._tables = tables
        self._every_row = np.arange(count)
        self._token_ids = np.empty(count, dtype=np.int64)
        self._positions = np.empty(count, dtype=np.int32)
        self._context_lens = np.empty(count, dtype=np.int32)
        self._slots = [np.empty(count, dtype=np.int64) for _ in tables]
        positions, context_lens = map(torch.from_numpy, (self._positions, self._context_lens))
        query_starts = torch.arange(count + 1, dtype=torch.int32)
        self._inputs = StepInputs(
            torch.from_numpy(self._token_ids),
            [
                BatchLayout(positions, torch.from_numpy(slots), query_starts, context_lens, torch.from_numpy(table))
                for slots, table in zip(self._slots, tables, strict=True)
            ],
            torch.arange(count),
            DrawingRows(states),
            [],
            [],
        )

    def fits(self, plan: StepPlan) -> bool:
        """Whether the plan is another such step of these rows."""
        return (
            plan.row_ids == self._row_ids
            and plan.counts == self._counts
            and plan.samples == self._samples
            and not plan.forks
        )

    def move_to(self, starts: Sequence[int]) -> StepInputs:
        """The inputs of the step that computes these positions."""
        self._token_ids[:] = [tokens[start] for tokens, start in zip(self._token_lists, starts, strict=True)]
        self._positions[:] = starts
        np.add(self._positions, 1, out=self._context_lens)
        blocks, offsets = np.divmod(self._positions, self._block_size)
        for table, slots in zip(self._tables, self._slots, strict=True):
            np.multiply(table[self._every_row, blocks], self._block_size, out=slots, dtype=np.int64)
            np.add(slots, offsets, out=slots)
        return self._inputs

    def write_table(self, write: TableWrite) -> bool:
        """Keep the tables up; false where one of these rows has outgrown its table."""
        place = self._places.get(write.row_id)
        if place is None:
            return True
        table = self._tables[write.group]
        if write.logical_block >= table.shape[1]:
            return False
        table[place, write.logical_block] = write.block_id
        return True


def is_decode(plan: StepPlan) -> bool:
    """Whether each row of the plan computes one token and draws the next."""
    return plan.counts.count(1) == len(plan.counts) and all(plan.samples)
