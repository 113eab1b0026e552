"""Keys given as flags, out of the list of processes that everybody on the machine can read."""

import ctypes
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

_ARG_START = 45
"""Where /proc/PID/stat, split behind the name of the process, says at which address the arguments begin; the next
number is their end (proc_pid_stat(5))."""


def hide_arguments(secrets: Collection[str]) -> None:
    """Overwrite these values among the process's own arguments. Where the system has no such place, nothing happens."""
    if not secrets or sys.platform != "linux":
        return
    with suppress(OSError, ValueError, IndexError):
        numbers = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        start, end = int(numbers[_ARG_START]), int(numbers[_ARG_START + 1])
        if start:
            for offset, length in _places(ctypes.string_at(start, end - start), secrets):
                ctypes.memset(start + offset, ord("*"), length)


def _places(arguments: bytes, secrets: Collection[str]) -> Iterator[tuple[int, int]]:
    """Offset and length of each, where it is an argument of its own or what an argument ends with behind "="."""
    found = [secret.encode() for secret in secrets if secret]
    offset = 0
    for argument in arguments.split(b"\0"):
        for secret in found:
            if argument == secret or argument.endswith(b"=" + secret):
                yield offset + len(argument) - len(secret), len(secret)
        offset += len(argument) + 1
