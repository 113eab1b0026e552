"""Pages of the KV pool are asked of the system before they are written, while nothing else is to do.

A large pool is mapped and not written, so it takes no memory before it is used; but then the step that first writes
into a block waits until the system has found and zeroed a page, a twelfth of the time of short requests on a virtual
machine. So a thread keeps some memory ready ahead of what the pool has given out: blocks come in ascending order as
long as there are some that nobody had yet. It works while no step does, and ends when it is ahead far enough.
"""

import ctypes
import mmap
import os
import threading
import time
import weakref
from collections.abc import Iterable, Sequence

from torch import Tensor

from octavo.core.step import TableWrite
from octavo.kernels.interface import KVLayer

AHEAD_BYTES = 256 << 20
"""Memory that is ready and not yet used, at most."""

PIECE_BYTES = 2 << 20
"""Asked for at once: a huge page, some milliseconds."""

QUIET_SECONDS = 0.02
"""Since the last step; between the steps of a busy engine there is less."""

_MADV_POPULATE_WRITE = 23
"""Of Linux 5.14 and later. The mmap module does not know it, and would hold the interpreter's lock meanwhile."""


class PageAhead:
    """Of the memory that ``layers`` lie in, all of which are as long. Where the system cannot do this, nothing happens.

    Not shared between threads, but for what it starts itself.
    """

    def __init__(self, layers: Sequence[KVLayer], ahead_bytes: int = AHEAD_BYTES) -> None:
        self._memory = [part for layer in layers for part in layer.tensors]
        self._num_blocks = len(self._memory[0]) if self._memory else 0
        bytes_a_block = sum(part.nbytes for part in self._memory) // max(1, self._num_blocks)
        self._ahead = ahead_bytes // max(1, bytes_a_block)
        self._used = 0
        self._ready = 0
        self._last_step = 0.0
        self._is_stepping = False
        self._thread: threading.Thread | None = None

    @property
    def num_ready(self) -> int:
        """Blocks from the first on, that are in memory."""
        return self._ready

    def step_begins(self, writes: Iterable[TableWrite]) -> None:
        """Before a step whose tables change so."""
        self._is_stepping = True
        used = max((write.block_id for write in writes), default=-1) + 1
        self._used = max(self._used, used)
        # From half of it on, so that a thread is not started for every block.
        if self._thread is None and self._ready < self._num_blocks and self._used + self._ahead // 2 >= self._ready:
            self._thread = threading.Thread(target=_work, args=(weakref.ref(self),), name="octavo-pages", daemon=True)
            self._thread.start()

    def step_ended(self) -> None:
        self._last_step = time.monotonic()
        self._is_stepping = False

    def work(self) -> bool:
        """Make a few blocks ready, if nothing else is to do. False when there is no more to do for now."""
        if not self._is_quiet():
            return True
        wanted = min(self._num_blocks, self._used + self._ahead)
        largest = max(part.nbytes for part in self._memory) // self._num_blocks
        end = min(wanted, self._ready + max(1, PIECE_BYTES // largest))
        for part in self._memory:
            if not self._is_quiet():
                return True
            if not _populate(part, self._ready, end):
                end = self._num_blocks  # not on this system, or it has no memory left: pages come when they are written
                break
        self._ready = end
        return self._ready < wanted

    def rest(self) -> None:
        self._thread = None

    def _is_quiet(self) -> bool:
        return not self._is_stepping and time.monotonic() - self._last_step >= QUIET_SECONDS


def _work(weakly_held: "weakref.ref[PageAhead]") -> None:
    """Until there is no more to do, or nobody holds the memory any more."""
    while (ahead := weakly_held()) is not None:
        if not ahead.work():
            ahead.rest()
            return
        del ahead
        time.sleep(QUIET_SECONDS / 4)


def _populate(memory: Tensor, first_block: int, end_block: int) -> bool:
    """Whether the pages of these blocks are there now."""
    size = memory.nbytes // len(memory)
    begin = (memory.data_ptr() + first_block * size) // mmap.PAGESIZE * mmap.PAGESIZE
    end = memory.data_ptr() + end_block * size
    if os.uname().sysname != "Linux" or end <= begin:
        return end <= begin
    done: int = _madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_POPULATE_WRITE)
    return done == 0


_madvise = ctypes.CDLL(None).madvise
