"""A step recorded once on the native back end: what a model is handed instead of inputs, and how each step's inputs
reach the program that its operations became."""

from collections.abc import Iterator, Sequence
from ctypes import CDLL
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from octavo.core.timing import Timed, untimed
from octavo.kernels import native
from octavo.kernels.interface import BatchLayout, KVLayer, Step
from octavo.kernels.native import HEAD_ROWS, STEP_ROWS
from octavo.kernels.native_batch import LAYOUT_FIELDS, layout_values
from octavo.kernels.program import NativeProgram, Register, as_register, as_tensor

FIRST_MAX_ROWS = 512
"""Rows that the first recording has memory for; a step that has more is recorded anew."""


class LayerLayout:
    """Stands for the layout of one layer. ``batch`` is what the layer's operations read when the program runs."""

    def __init__(self, batch: native.Batch) -> None:
        batch.num_rows = STEP_ROWS
        self.batch = batch


class _Recording:
    """``program``, still empty, filled with the operations of ``step``."""

    def __init__(
        self, program: NativeProgram, step: Step, kv: Sequence[tuple[KVLayer, int]], max_logit_rows: int
    ) -> None:
        self.max_rows = program.max_rows
        self._program = program
        self._batches = (native.Batch * len(kv))()
        fields = np.frombuffer(memoryview(self._batches).cast("B"), dtype=np.int64).reshape(len(kv), -1)
        first = getattr(native.Batch, LAYOUT_FIELDS[0]).offset // fields.itemsize
        self._layouts = fields[:, first : first + len(LAYOUT_FIELDS)]
        groups = np.array([group for _, group in kv])
        self._layers = [np.flatnonzero(groups == group) for group in range(groups.max() + 1)]
        token_ids = Register(self._program, (STEP_ROWS,), torch.int64)
        head_rows = Register(self._program, (HEAD_ROWS,), torch.int64)
        layouts = [cast("BatchLayout", LayerLayout(batch)) for batch in self._batches]
        layers = [(held, layout) for (held, _), layout in zip(kv, layouts, strict=True)]
        with self._program.recording():
            hidden = step.forward(as_tensor(token_ids), layers, as_tensor(head_rows))
            self._num_forward = len(self._program)
            self._program.max_head_rows = max_logit_rows
            logits, best_ids = step.head(hidden)
        # Kept, so that no other register shares their memory: it is written here, or read when the program has run.
        self._registers = (token_ids, head_rows, hidden, logits, best_ids)
        self._token_ids, self._head_rows, self._hidden, self._logits, self._best_ids = map(_memory, self._registers)
        self._outputs = torch.from_numpy(self._logits[:0]), torch.from_numpy(self._best_ids[:0])
        self._last_layouts: Sequence[BatchLayout] | None = None
        self._last_head_rows: Tensor | None = None

    def run(self, token_ids: Tensor, layouts: Sequence[BatchLayout], head_rows: Tensor, num_logit_rows: int) -> None:
        """The whole step; logits of the first ``num_logit_rows`` rows that reach the head."""
        num_rows, num_head_rows = token_ids.shape[0], head_rows.shape[0]
        if layouts is not self._last_layouts or head_rows is not self._last_head_rows:
            self._last_layouts = self._last_head_rows = None  # should one of them be refused
            self._take_head_rows(head_rows, num_rows)
            self._take_layouts(layouts)
            self._last_layouts, self._last_head_rows = layouts, head_rows
        self._token_ids[:num_rows] = token_ids.numpy()
        if num_logit_rows == num_head_rows:
            self._program.run(range(len(self._program)), num_rows, num_head_rows)
        else:
            self._program.run(range(self._num_forward), num_rows, num_head_rows)
            if num_logit_rows:
                self.run_head(0, num_logit_rows)

    def hidden(self, first: int, end: int) -> Tensor:
        """Rows of what ``forward`` gave, of those that reach no head."""
        return torch.from_numpy(self._hidden[first:end])

    def _take_head_rows(self, head_rows: Tensor, num_rows: int) -> None:
        rows = self._head_rows[: head_rows.shape[0]]
        rows[:] = head_rows.numpy()
        if head_rows.shape[0] and not 0 <= rows.min() <= rows.max() < num_rows:
            raise IndexError(f"The head was given a row outside 0 .. {num_rows - 1}.")

    def _take_layouts(self, layouts: Sequence[BatchLayout]) -> None:
        for layers, layout in zip(self._layers, layouts, strict=True):
            self._layouts[layers] = layout_values(layout)

    def outputs(self, count: int) -> tuple[Tensor, Tensor]:
        """The first ``count`` rows of what the head gave, logits and best tokens; the same objects while that is the
        same count."""
        if self._outputs[0].shape[0] != count:
            self._outputs = torch.from_numpy(self._logits[:count]), torch.from_numpy(self._best_ids[:count])
        return self._outputs

    def run_head(self, first: int, count: int) -> None:
        """The head alone, on more rows of the same step; rows are asked for once, in order."""
        self._hidden[:count] = self._hidden[first : first + count]
        self._program.run(range(self._num_forward, len(self._program)), 0, count)


def _memory(x: object) -> Any:
    register = as_register(x)
    assert register is not None, "a step returns what operations returned"
    return register.memory.numpy()


class CpuRecordedStep:
    """Implements ``interface.RecordedStep``: a recording, made anew with more memory when a step has more rows."""

    def __init__(
        self,
        library: CDLL,
        step: Step,
        kv: Sequence[tuple[KVLayer, int]],
        max_logit_rows: int,
        timed: Timed = untimed,
    ) -> None:
        self._new_program = partial(NativeProgram, library, timed=timed)
        self._step = step
        self._kv = kv
        self._max_logit_rows = max_logit_rows
        self._recording: _Recording | None = self._record(FIRST_MAX_ROWS)
        self._num_head_rows = 0

    def run(
        self, token_ids: Tensor, layouts: Sequence[BatchLayout], head_rows: Tensor, num_hidden: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        num_rows, self._num_head_rows = token_ids.shape[0], head_rows.shape[0]
        recording = self._recording_for(max(num_rows, self._num_head_rows))
        num_logit_rows = self._num_head_rows - num_hidden
        count = min(num_logit_rows, self._max_logit_rows)
        recording.run(token_ids, layouts, head_rows, count)
        for first in range(0, num_logit_rows, self._max_logit_rows):
            if first:
                count = min(num_logit_rows - first, self._max_logit_rows)
                recording.run_head(first, count)
            yield recording.outputs(count)

    def hidden(self, count: int) -> Tensor:
        assert self._recording is not None, "a step has run"
        return self._recording.hidden(self._num_head_rows - count, self._num_head_rows)

    def _recording_for(self, num_rows: int) -> _Recording:
        """One with room for so many rows. The old one goes first, for its memory; should there be none for the new one,
        the next step tries again."""
        if self._recording is None or num_rows > self._recording.max_rows:
            self._recording = None
            self._recording = self._record(2 * num_rows)
        return self._recording

    def _record(self, max_rows: int) -> _Recording:
        return _Recording(self._new_program(max_rows, max_rows), self._step, self._kv, self._max_logit_rows)
