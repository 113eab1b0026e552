"""The rows that a runner knows, and the inputs of one step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.core.step import NewRow, Pooling, StepPlan, TableWrite
from octavo.kernels.interface import BatchLayout
from octavo.runner.decode_inputs import DecodeInputs, is_decode
from octavo.runner.drafted_draws import DraftedDraw, drafted_draws
from octavo.runner.row_sampling import RowSampling
from octavo.runner.step_inputs import DrawingRows, KnownToken, PooledRow, StepInputs

SPARE_BLOCKS = 8
"""By so many blocks rows may grow before their decode inputs are made anew."""


@dataclass(slots=True)
class Row:
    """One live sequence. ``index`` is its line in the table arrays; its tokens are those of ``sampling``."""

    index: int
    num_prompt_tokens: int
    sampling: RowSampling
    pooling: Pooling | None = None

    @property
    def tokens(self) -> list[int]:
        return self.sampling.token_ids


class InputBatch:
    """Rows by id, with one array of block tables a layer group: [lines, blocks of the longest sequence], int32."""

    def __init__(self, num_groups: int, block_size: int, max_blocks: int) -> None:
        self.rows: dict[int, Row] = {}
        self._block_size = block_size
        self._tables = [np.empty((0, max_blocks), dtype=np.int32) for _ in range(num_groups)]
        self._widths: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._unused: list[int] = []
        self._decode: DecodeInputs | None = None

    def add(self, new: NewRow, sampling: RowSampling) -> None:
        if not self._unused:
            self._grow()
        row = Row(self._unused.pop(), new.num_prompt_tokens, sampling, new.pooling)
        self.rows[new.row_id] = row
        for table, block_ids in zip(self._tables, new.block_ids, strict=True):
            table[row.index, : len(block_ids)] = block_ids
        self._widths[row.index] = len(new.block_ids[0])

    def write_tables(self, writes: Sequence[TableWrite]) -> None:
        for write in writes:
            row_id, group, logical_block, block_id = write
            index = self.rows[row_id].index
            self._tables[group][index, logical_block] = block_id
            self._widths[index] = max(self._widths[index], logical_block + 1)
            if self._decode is not None and not self._decode.write_table(write):
                self._decode = None

    def release(self, row_ids: Sequence[int]) -> None:
        for row_id in row_ids:
            self._unused.append(self.rows.pop(row_id).index)
            self._decode = None

    def clear(self) -> None:
        self.release(list(self.rows))

    def inputs(self, plan: StepPlan) -> StepInputs:
        """Of a plan that computes something; valid until the next call."""
        if self._decode is None or not self._decode.fits(plan):
            self._decode = self._decode_inputs(plan.row_ids) if is_decode(plan) and not self._pools(plan) else None
        return self._any_inputs(plan) if self._decode is None else self._decode.move_to(plan.starts)

    def _pools(self, plan: StepPlan) -> bool:
        return any(self.rows[row_id].pooling for row_id in plan.row_ids)

    def _decode_inputs(self, row_ids: tuple[int, ...]) -> DecodeInputs:
        rows = [self.rows[row_id] for row_id in row_ids]
        lines = np.array([row.index for row in rows])
        tables = self._tables_of(lines, int(self._widths[lines].max()) + SPARE_BLOCKS)
        return DecodeInputs(row_ids, [row.sampling for row in rows], tables, self._block_size)

    def _tables_of(self, lines: NDArray[np.int64], width: int) -> list[NDArray[np.int32]]:
        """Copies of these lines, at most so many blocks wide; -1 past the end of a sequence."""
        tables = [table[lines, :width] for table in self._tables]
        for table in tables:
            table[np.arange(table.shape[1]) >= self._widths[lines][:, None]] = -1
        return tables

    def _any_inputs(self, plan: StepPlan) -> StepInputs:
        drawing: list[RowSampling] = []
        known: list[KnownToken] = []
        drawing_rows: list[int] = []
        known_rows: list[int] = []
        token_ids: list[int] = []
        sources, drafts = dict(plan.forks), dict(plan.drafts)
        last_rows: dict[int, int] = {}
        drafted: list[tuple[DraftedDraw, int]] = []
        pooled: list[PooledRow] = []
        pooled_rows: list[int] = []
        for row_id, start, count, samples in zip(plan.row_ids, plan.starts, plan.counts, plan.samples, strict=True):
            row, first_row = self.rows[row_id], len(token_ids)
            num_top = row.sampling.params.prompt_logprobs
            if num_top is not None:
                predicted = row.tokens[start + 1 : min(start + count + 1, row.num_prompt_tokens)]
                known += (KnownToken(row_id, token_id, num_top) for token_id in predicted)
                known_rows += range(first_row, first_row + len(predicted))
            places = _pooled_places(row, start, count)
            if places:
                pooled.append(PooledRow(row_id, len(places)))
                pooled_rows += range(first_row + places.start, first_row + places.stop)
            token_ids += row.tokens[start : start + count]
            last_rows[row_id] = last_rows[sources[row_id]] if row_id in sources else len(token_ids) - 1
            if samples:
                drawing.append(row.sampling)
                drawing_rows.append(last_rows[row_id])
            if row_id in drafts:
                drafted += zip(
                    drafted_draws(row.sampling, start, drafts[row_id]), range(len(token_ids), 1 << 62), strict=False
                )
                token_ids += drafts[row_id]
        assert len(token_ids) == plan.num_tokens, "a planned token has neither landed nor been sampled"
        drafted.sort(key=lambda each: each[0].number)
        rows = drawing_rows + known_rows + [row for _, row in drafted] + pooled_rows
        ids, head_rows = torch.tensor(token_ids), torch.tensor(rows, dtype=torch.int64)
        return StepInputs(
            ids, self._layouts(plan), head_rows, DrawingRows(drawing), known, [draw for draw, _ in drafted], pooled
        )

    def _layouts(self, plan: StepPlan) -> list[BatchLayout]:
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
        layouts = []
        for table in self._tables_of(lines, int(self._widths[lines].max())):
            blocks = table[sequence_of_row, positions // self._block_size].astype(np.int64)
            slots = torch.from_numpy(blocks * self._block_size + positions % self._block_size)
            layouts.append(BatchLayout(shared[0], slots, shared[1], shared[2], torch.from_numpy(table)))
        return layouts

    def _grow(self) -> None:
        size = len(self._widths)
        more = max(16, size)
        self._tables = [np.concatenate((t, np.full((more, t.shape[1]), -1, dtype=np.int32))) for t in self._tables]
        self._widths = np.concatenate((self._widths, np.zeros(more, dtype=np.int64)))
        self._unused += range(size + more - 1, size - 1, -1)


def _pooled_places(row: Row, start: int, count: int) -> range:
    """Which of ``count`` positions from ``start`` on are pooled, counted from ``start``."""
    end = min(count, row.num_prompt_tokens - start)
    if row.pooling is None:
        return range(0)
    return range(end) if row.pooling == "mean" else range(max(0, row.num_prompt_tokens - 1 - start), end)
