"""The rows that a runner knows, and the arrays that one step needs of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.core.step import NewRow, StepPlan, TableWrite
from octavo.kernels.interface import BatchLayout
from octavo.runner.row_sampling import RowSampling


@dataclass(slots=True)
class Row:
    """One live sequence. ``index`` is its line in the table arrays."""

    index: int
    tokens: list[int]
    num_prompt_tokens: int
    sampling: RowSampling

    def append(self, token_id: int) -> None:
        self.tokens.append(token_id)
        self.sampling.append(token_id)


class InputBatch:
    """Rows by id, with one array of block tables a layer group: [lines, blocks of the longest sequence], int32."""

    def __init__(self, num_groups: int, block_size: int, max_blocks: int) -> None:
        self.rows: dict[int, Row] = {}
        self._block_size = block_size
        self._tables = [np.empty((0, max_blocks), dtype=np.int32) for _ in range(num_groups)]
        self._widths: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._unused: list[int] = []

    def add(self, new: NewRow, sampling: RowSampling) -> None:
        if not self._unused:
            self._grow()
        row = Row(self._unused.pop(), list(new.token_ids), new.num_prompt_tokens, sampling)
        self.rows[new.row_id] = row
        for table, block_ids in zip(self._tables, new.block_ids, strict=True):
            table[row.index, : len(block_ids)] = block_ids
        self._widths[row.index] = len(new.block_ids[0])

    def write_tables(self, writes: Sequence[TableWrite]) -> None:
        for row_id, group, logical_block, block_id in writes:
            index = self.rows[row_id].index
            self._tables[group][index, logical_block] = block_id
            self._widths[index] = max(self._widths[index], logical_block + 1)

    def release(self, row_ids: Sequence[int]) -> None:
        for row_id in row_ids:
            self._unused.append(self.rows.pop(row_id).index)

    def clear(self) -> None:
        self.release(list(self.rows))

    def token_ids(self, plan: StepPlan) -> torch.Tensor:
        """int64 [R], the tokens to compute, row after row."""
        ids: list[int] = []
        for row_id, start, count in zip(plan.row_ids, plan.starts, plan.counts, strict=True):
            ids += self.rows[row_id].tokens[start : start + count]
        assert len(ids) == plan.num_tokens, "a planned token has neither landed nor been sampled"
        return torch.tensor(ids, dtype=torch.int64)

    def layouts(self, plan: StepPlan) -> list[BatchLayout]:
        """Where the rows stand, one layout a layer group. Rows that only draw (forks) compute nothing."""
        computing = [
            (self.rows[row_id].index, start, count)
            for row_id, start, count in zip(plan.row_ids, plan.starts, plan.counts, strict=True)
            if count
        ]
        lines, starts, counts = np.array(computing, dtype=np.int64).T
        query_starts = np.concatenate(([0], np.cumsum(counts)))
        sequence_of_row = np.repeat(np.arange(len(lines)), counts)
        positions = np.arange(query_starts[-1]) + np.repeat(starts - query_starts[:-1], counts)
        shared = (
            torch.from_numpy(positions.astype(np.int32)),
            torch.from_numpy(query_starts.astype(np.int32)),
            torch.from_numpy((starts + counts).astype(np.int32)),
        )
        width = int(self._widths[lines].max())
        layouts = []
        for table in self._tables:
            tables = table[lines, :width]
            blocks = tables[sequence_of_row, positions // self._block_size].astype(np.int64)
            slots = torch.from_numpy(blocks * self._block_size + positions % self._block_size)
            tables[np.arange(width) >= self._widths[lines][:, None]] = -1
            layouts.append(BatchLayout(shared[0], slots, shared[1], shared[2], torch.from_numpy(tables)))
        return layouts

    def _grow(self) -> None:
        size = len(self._widths)
        more = max(16, size)
        self._tables = [np.concatenate((t, np.full((more, t.shape[1]), -1, dtype=np.int32))) for t in self._tables]
        self._widths = np.concatenate((self._widths, np.zeros(more, dtype=np.int64)))
        self._unused += range(size + more - 1, size - 1, -1)
