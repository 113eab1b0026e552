"""The operations of a step, kept by the native library to be run in one call (csrc/program.h), and their registers.

A register stands for a tensor that exists when the program runs. Its memory goes to a later register as soon as nobody
holds it any more: Python's reference counts are the analysis of what lives how long. It only ever goes to one of the
same shape: operations that treat each row alone are chained, a few rows at a time (csrc/row_chain.h), so that one may
write a row while another still reads the next.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CDLL, c_void_p
from typing import cast

import torch
from torch import Tensor

from octavo.core.timing import Timed, untimed
from octavo.kernels.native import HEAD_ROWS, STEP_ROWS


class NativeProgram:
    """``max_rows``, ``max_head_rows``: rows that registers made from now on have memory for. ``timed``: told of
    the part "native"."""

    def __init__(self, library: CDLL, max_rows: int, max_head_rows: int, timed: Timed = untimed) -> None:
        self.max_rows = max_rows
        self.max_head_rows = max_head_rows
        self._library = library
        self._run: Callable[..., int] = timed("native", library.octavo_program_run)
        self._handle = c_void_p(library.octavo_program_create())
        self._unused: defaultdict[tuple[tuple[int, ...], torch.dtype], list[Tensor]] = defaultdict(list)
        self._faults: dict[int, str] = {}
        self._kept: list[Tensor] = []

    def __del__(self) -> None:
        self._library.octavo_program_destroy(self._handle)

    def __len__(self) -> int:
        """Operations so far; what is recorded from now on is not chained to them."""
        return int(self._library.octavo_program_size(self._handle))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, operations that this thread calls are kept here instead of being carried out."""
        self._library.octavo_record(self._handle)
        try:
            yield
        finally:
            self._library.octavo_record(None)

    def note_fault(self, what: str) -> None:
        """``what`` the kernels were given if the last operation so far meets an index out of range."""
        self._faults[len(self) - 1] = what

    def run(self, operations: range, num_rows: int, num_head_rows: int) -> None:
        """Carry out some of the operations.

        Raises:
            IndexError: an index is outside the memory; the operations after that are not carried out.
        """
        failed = self._run(self._handle, operations.start, operations.stop, num_rows, num_head_rows)
        if failed >= 0:
            raise IndexError(f"The native CPU kernels were given {self._faults[failed]}.")

    def keep(self, tensor: Tensor) -> None:
        """Operations have its address."""
        self._kept.append(tensor)

    def take_memory(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        unused = self._unused[shape, dtype]
        if unused:
            return unused.pop()
        capacity = {STEP_ROWS: self.max_rows, HEAD_ROWS: self.max_head_rows}[shape[0]]
        return torch.empty(capacity, *shape[1:], dtype=dtype)

    def give_back_memory(self, memory: Tensor, shape: tuple[int, ...]) -> None:
        self._unused[shape, memory.dtype].append(memory)


class Register:
    """``shape``: [rows, ...], where rows is STEP_ROWS or HEAD_ROWS; ``memory``: [as many rows as it is for, ...]."""

    __slots__ = ("_program", "memory", "shape")

    def __init__(self, program: NativeProgram, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape = shape
        self.memory = program.take_memory(shape, dtype)
        self._program = program

    def __del__(self) -> None:
        self._program.give_back_memory(self.memory, self.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.memory.dtype

    @property
    def itemsize(self) -> int:
        return self.memory.itemsize

    def data_ptr(self) -> int:
        return self.memory.data_ptr()

    def new(self, shape: tuple[int, ...], dtype: torch.dtype) -> "Register":
        return Register(self._program, shape, dtype)

    def note_fault(self, what: str) -> None:
        self._program.note_fault(what)

    def keep(self, tensor: Tensor) -> None:
        self._program.keep(tensor)


def as_tensor(register: Register) -> Tensor:
    """For a model, which does not know that it is being recorded: operations take both."""
    return cast("Tensor", register)


def as_register(x: object) -> Register | None:
    """What ``as_tensor`` was given, or None for a tensor."""
    return x if isinstance(x, Register) else None


def empty_like_rows(x: Tensor, *width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Memory for a result with as many rows as ``x``: [R, *width]."""
    shape, register = (x.shape[0], *width), as_register(x)
    return torch.empty(shape, dtype=dtype) if register is None else as_tensor(register.new(shape, dtype))
