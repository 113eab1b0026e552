"""The native library: found, loaded, its C interface typed (csrc/octavo_kernels.h), threads and instruction set set."""

import ctypes
import hashlib
import math
import os
import threading
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path

from octavo.core.errors import ConfigurationError
from octavo.kernels.cgroup import MEMBERSHIP, ROOT, own_cgroups

LIBRARY_PATH = Path(__file__).with_name("_native.so")
HEADER_PATH = Path(__file__).with_name("csrc") / "octavo_kernels.h"
"""In a checkout; an installed package has the library alone."""

OK, UNKNOWN_NAME, UNSUPPORTED, BAD_INDEX = range(4)

ISAS = ("avx512", "avx2", "portable")
"""Instruction sets, best first: the first one that the machine has is used where none is forced."""

STEP_ROWS, HEAD_ROWS = -1, -2
"""OctavoRows: numbers of rows that a recorded operation learns from each step."""


class NativeLibraryMissingError(ConfigurationError):
    """The native kernels were not built, or cannot be loaded on this machine."""


class AttentionShape(ctypes.Structure):
    """OctavoAttentionShape."""

    _fields_ = (
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("block_size", c_int64),
        ("num_blocks", c_int64),
        ("window", c_int64),
        ("scale", c_float),
        ("soft_cap", c_float),
    )


class Batch(ctypes.Structure):
    """OctavoBatch."""

    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("key_scales", c_void_p),
        ("value_scales", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("query_starts", c_void_p),
        ("block_tables", c_void_p),
        ("num_rows", c_int64),
        ("num_sequences", c_int64),
        ("table_width", c_int64),
        ("table_pitch", c_int64),
        ("kv_type", c_int32),
    )


MAX_THREADS = 1024
"""More than any machine has cores for; far more would take the memory for their stacks."""

_SHAPE, _BATCH, _PTR, _INT, _FLOAT = POINTER(AttentionShape), POINTER(Batch), c_void_p, c_int64, c_float

# Name: (arguments, result), in the order of the header.
_SIGNATURES: dict[str, tuple[list[type], type | None]] = {
    "octavo_interface": ([], c_char_p),
    "octavo_set_isa": ([c_char_p], c_int32),
    "octavo_isa": ([], c_char_p),
    "octavo_arithmetic": ([], c_char_p),
    "octavo_set_num_threads": ([c_int32], None),
    "octavo_num_threads": ([], c_int32),
    "octavo_ceiling_read": ([_PTR, _INT], _INT),
    "octavo_ceiling_fma": ([_INT, POINTER(c_float)], _INT),
    "octavo_ceiling_dot": ([_INT, POINTER(c_int64)], _INT),
    "octavo_ceiling_quantized": ([c_int32, _INT], _INT),
    "octavo_pack_linear": ([_PTR, c_int32, _PTR, _INT, _INT], None),
    "octavo_linear": ([_PTR, _PTR, c_int32, _PTR, _PTR, _INT, _INT, _INT], None),
    "octavo_gather_packed": ([_PTR, c_int32, _INT, _PTR, _PTR, _INT, _INT, _FLOAT], c_int32),
    "octavo_pack_quantized": ([_PTR, _PTR, _PTR, c_int32, _PTR, _INT, _INT], None),
    "octavo_quantize_rows": ([_PTR, _PTR, c_int32, _INT, _INT], None),
    "octavo_linear_quantized": ([_PTR, _PTR, c_int32, _PTR, _PTR, _INT, _INT, _INT, _INT], None),
    "octavo_gather_quantized": ([_PTR, c_int32, _INT, _PTR, _PTR, _INT, _INT, _FLOAT], c_int32),
    "octavo_gather_rows": ([_PTR, _INT, _PTR, _PTR, _INT, _INT, _FLOAT], c_int32),
    "octavo_norm": ([_PTR, _PTR, _PTR, _INT, _INT, _FLOAT], None),
    "octavo_norm_heads": ([_PTR, _PTR, _PTR, _INT, _SHAPE, _FLOAT], None),
    "octavo_rotate_and_write_kv": ([_PTR, _PTR, _PTR, _INT, _BATCH, _SHAPE, _PTR], c_int32),
    "octavo_attention": ([_PTR, _BATCH, _SHAPE, _PTR], c_int32),
    "octavo_argmax": ([_PTR, _PTR, _INT, _INT, _INT], None),
    "octavo_sample": ([_PTR] * 6 + [_INT] * 4, None),
    "octavo_logprobs": ([_PTR] * 4 + [_INT] * 4, None),
    "octavo_gate": ([_PTR, _PTR, _INT, _INT, c_int32], None),
    "octavo_add": ([_PTR, _PTR, _INT, _INT], None),
    "octavo_program_create": ([], _PTR),
    "octavo_program_destroy": ([_PTR], None),
    "octavo_record": ([_PTR], None),
    "octavo_program_size": ([_PTR], _INT),
    "octavo_program_run": ([_PTR, _INT, _INT, _INT, _INT], _INT),
}


def load() -> ctypes.CDLL:
    """The library, with the instruction set and number of threads that the environment asks for.

    Raises:
        NativeLibraryMissingError: it was not built or cannot be loaded.
        ConfigurationError: OCTAVO_ISA or OCTAVO_THREADS cannot be followed, or the library is of other sources.
    """
    library = open_library()
    set_isa(library, os.environ.get("OCTAVO_ISA") or None)
    library.octavo_set_num_threads(default_num_threads())
    return library


def open_library() -> ctypes.CDLL:
    """The library as it is, with whatever settings it has.

    Raises:
        NativeLibraryMissingError: it was not built or cannot be loaded.
        ConfigurationError: it was built from other sources than those it stands beside.
    """
    with _open_lock:
        return _open_once(LIBRARY_PATH)


_open_lock = threading.Lock()


@cache
def _open_once(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        reason = "cannot be loaded" if path.exists() else "were not built"
        raise NativeLibraryMissingError(
            f"The native CPU kernels {reason} ({error}): install a C++17 compiler (for example `apt install g++`), "
            "then install Octavo again."
        ) from error
    _check_interface(library)
    for name, (arguments, result) in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library


def _check_interface(library: ctypes.CDLL) -> None:
    """A checkout may move on under a library that was built before, whose calls then take other arguments."""
    if not HEADER_PATH.exists():
        return
    interface = getattr(library, "octavo_interface", None)
    if interface is not None:
        interface.restype = c_char_p
    if interface is None or interface() != hashlib.sha256(HEADER_PATH.read_bytes()).hexdigest().encode():
        raise ConfigurationError(
            "The native CPU kernels were built from an earlier or later version of these sources: "
            "build them again (`make install`)."
        )


def set_isa(library: ctypes.CDLL, name: str | None) -> None:
    """Use the instruction set ``name``, or the best one of this machine."""
    status = library.octavo_set_isa(None if name is None else name.encode())
    if status == UNSUPPORTED:
        raise ConfigurationError(f"OCTAVO_ISA={name}: this machine does not have that instruction set; unset it.")
    if status == UNKNOWN_NAME:
        raise ConfigurationError(
            f"OCTAVO_ISA={name}: the kernels were not built for that; choose one of: {', '.join(ISAS)}."
        )


def default_num_threads() -> int:
    """OCTAVO_THREADS, else the CPUs that this process may use by affinity and by its cgroup's quota.

    Raises:
        ConfigurationError: OCTAVO_THREADS is not a whole number from 1 to ``MAX_THREADS``.
    """
    wanted = os.environ.get("OCTAVO_THREADS")
    if wanted:
        if not wanted.isdecimal() or not 1 <= int(wanted) <= MAX_THREADS:
            raise ConfigurationError(f"OCTAVO_THREADS={wanted}: give a whole number of threads, 1 to {MAX_THREADS}.")
        return int(wanted)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cpu_quota()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def cgroup_cpu_quota(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """CPUs that the tightest enclosing cgroup grants (version 2, or 1 as containers mount it); None: no limit."""
    quotas = []
    for folder in own_cgroups(root, membership):
        quota, period = _read_words(folder / "cpu.max", 2) or (
            *(_read_words(folder / "cpu" / "cpu.cfs_quota_us", 1) or ("max",)),
            *(_read_words(folder / "cpu" / "cpu.cfs_period_us", 1) or ("100000",)),
        )
        if quota not in ("max", "-1"):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _read_words(path: Path, count: int) -> tuple[str, ...] | None:
    try:
        words = path.read_text().split()
    except OSError:
        return None
    return tuple(words) if len(words) == count else None
