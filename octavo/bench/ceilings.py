"""What this machine can do at most, measured beside what Octavo does: reading memory, multiply-adds, dot products, and
those two mixed as quantised weights need them."""

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch

from octavo.kernels import native
from octavo.kernels.quantized import FORMATS

READ_BYTES = 1 << 28
"""For all threads together: many times a last-level cache."""
SECONDS = 0.04
"""About how long each loop of arithmetic runs."""
_TRIAL_ROUNDS = 20_000
_PASSES = 2


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Of all threads together. Multiply and add count as two; dot products are of bytes, with 32-bit sums.

    ``products_per_second``: of weights with activations, by the name of the weights' format, each group with the
    multiply-adds in fp32 that it takes. No sum of such groups is quicker, whatever else a kernel leaves out.
    """

    read_bytes_per_second: float
    float_operations_per_second: float
    byte_operations_per_second: float
    products_per_second: Mapping[str, float]

    def describe(self) -> str:
        return (
            f"this machine: memory read {self.read_bytes_per_second / 1e9:.1f} GB/s, fp32 multiply-add "
            f"{self.float_operations_per_second / 1e9:.0f} GFLOPS, 8-bit dot products "
            f"{self.byte_operations_per_second / 1e9:.0f} GOPS"
        )


def measure_ceilings(num_threads: int) -> Ceilings:
    """Takes about a second.

    Raises:
        NativeLibraryMissingError: the native kernels were not built.
    """
    library, reading = native.open_library(), MemoryReading(num_threads)
    return Ceilings(
        read_bytes_per_second=max(reading.bytes_per_second() for _ in range(2)),
        float_operations_per_second=_arithmetic(library.octavo_ceiling_fma, ctypes.c_float, num_threads),
        byte_operations_per_second=_arithmetic(library.octavo_ceiling_dot, ctypes.c_int64, num_threads),
        products_per_second={
            weight_format.name: _best_rate(partial(library.octavo_ceiling_quantized, number), num_threads)
            for number, weight_format in enumerate(FORMATS)
        },
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

    return _best_rate(lambda rounds: loop(rounds, ctypes.byref(result())), num_threads)


def _best_rate(loop: Callable[[int], int], num_threads: int) -> float:
    """What ``loop`` (rounds) counts a second."""
    start = time.perf_counter()
    loop(_TRIAL_ROUNDS)
    rounds = max(1, int(_TRIAL_ROUNDS * SECONDS / (time.perf_counter() - start)))
    return max(rate([partial(loop, rounds)] * num_threads) for _ in range(_PASSES))


def rate(loops: Sequence[Callable[[], int]]) -> float:
    """What ``loops`` count a second, all at once, a thread each (ctypes lets go of the interpreter)."""
    with ThreadPoolExecutor(len(loops)) as pool:
        start = time.perf_counter()
        total = sum(future.result() for future in [pool.submit(loop) for loop in loops])
        return total / (time.perf_counter() - start)
