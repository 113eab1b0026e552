"""What this machine can do at most, measured beside what Octavo does: reading memory, multiply-adds, dot products."""

import ctypes
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch

from octavo.kernels import native

READ_BYTES = 1 << 28
"""For all threads together: many times a last-level cache."""
SECONDS = 0.04
"""About how long each loop of arithmetic runs."""
_TRIAL_ROUNDS = 100_000


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Of all threads together. Multiply and add count as two; dot products are of bytes, with 32-bit sums."""

    read_bytes_per_second: float
    float_operations_per_second: float
    byte_operations_per_second: float

    def describe(self) -> str:
        return (
            f"this machine: memory read {self.read_bytes_per_second / 1e9:.1f} GB/s, fp32 multiply-add "
            f"{self.float_operations_per_second / 1e9:.0f} GFLOPS, 8-bit dot products "
            f"{self.byte_operations_per_second / 1e9:.0f} GOPS"
        )


def measure_ceilings(num_threads: int) -> Ceilings:
    """Takes about a third of a second.

    Raises:
        NativeLibraryMissingError: the native kernels were not built.
    """
    library, reading = native.open_library(), MemoryReading(num_threads)
    return Ceilings(
        read_bytes_per_second=max(reading.bytes_per_second() for _ in range(2)),
        float_operations_per_second=_arithmetic(library.octavo_ceiling_fma, ctypes.c_float, num_threads),
        byte_operations_per_second=_arithmetic(library.octavo_ceiling_dot, ctypes.c_int64, num_threads),
    )


class MemoryReading:
    """Memory that ``num_threads`` threads read, each a part of its own.

    Raises:
        NativeLibraryMissingError: the native kernels were not built.
    """

    def __init__(self, num_threads: int) -> None:
        library, size = native.open_library(), READ_BYTES // 8 // num_threads * 8
        self._memory = torch.ones(size // 8 * num_threads, dtype=torch.int64)
        self._loops = [partial(_read, library, part.data_ptr(), size) for part in self._memory.chunk(num_threads)]

    def bytes_per_second(self) -> float:
        return rate(self._loops)


def _read(library: ctypes.CDLL, pointer: int, size: int) -> int:
    library.octavo_ceiling_read(pointer, size)
    return size


def _arithmetic(loop: Callable[..., int], result: type, num_threads: int) -> float:
    """Operations a second of ``loop`` (rounds, pointer to a ``result``), which returns how many it did."""

    def run(rounds: int) -> int:
        return loop(rounds, ctypes.byref(result()))

    start = time.perf_counter()
    run(_TRIAL_ROUNDS)
    rounds = max(1, int(_TRIAL_ROUNDS * SECONDS / (time.perf_counter() - start)))
    return rate([partial(run, rounds)] * num_threads)


def rate(loops: Sequence[Callable[[], int]]) -> float:
    """What ``loops`` count a second, all at once, a thread each (ctypes lets go of the interpreter)."""
    with ThreadPoolExecutor(len(loops)) as pool:
        start = time.perf_counter()
        total = sum(future.result() for future in [pool.submit(loop) for loop in loops])
        return total / (time.perf_counter() - start)
