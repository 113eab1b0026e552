"""The file of ``--record``, written line by line by a server that goes on whatever becomes of the disk."""

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from octavo import __version__
from octavo.core.errors import ConfigurationError
from octavo.engine.steady_clock import steady_time
from octavo.sim.traces.request_log import MARK, header

logger = logging.getLogger(__name__)

RETRY_SECONDS = 30.0
"""After a write that failed."""

LONGEST_HEADER = 1024


@dataclass(frozen=True, slots=True)
class Rotation:
    """A file that would become longer than ``max_bytes`` (None: never) is put aside, under its name and ".1", where the
    one before becomes ".2" and so on; ``max_files`` there are in all, and the oldest goes.

    Raises:
        ConfigurationError: none may be there, or nothing in it.
    """

    max_bytes: int | None = None
    max_files: int = 4

    def __post_init__(self) -> None:
        if self.max_files < 1:
            raise ConfigurationError(f"record_max_files must be 1 or more, got {self.max_files}")
        if self.max_bytes is not None and self.max_bytes < 1:
            raise ConfigurationError(f"record_max_size must be 1 byte or more, got {self.max_bytes}")

    def paths(self, path: Path) -> list[Path]:
        """The newest first."""
        numbers = range(1, self.max_files if self.max_bytes is not None else 1)
        return [path, *(path.with_name(f"{path.name}.{number}") for number in numbers)]

    def put_aside(self, path: Path) -> None:
        """The name is free then."""
        *others, oldest = self.paths(path)
        oldest.unlink(missing_ok=True)
        for older, newer in zip(reversed(self.paths(path)), reversed(others), strict=False):
            if newer.exists():
                newer.replace(older)


class LogFile:
    """Lines at the end of a file, whole ones only. A file that was moved away is begun anew, as one that is full is
    (``rotation``). ``start``: of the run.

    Raises:
        ConfigurationError: it cannot be written, or it or one that would go for it holds something else.
    """

    def __init__(self, path: Path, rotation: Rotation) -> None:
        self.start = steady_time()
        self._path = path
        self._rotation = rotation
        self._block_size: int | None = None
        self._retry_at = 0.0
        try:
            for other in rotation.paths(path)[1:]:
                if other.exists():
                    os.close(_open(other, os.O_RDONLY))
            self._file = self._begin()
        except OSError as error:
            raise ConfigurationError(f"cannot record requests in {path}: {error.strerror or error}") from error

    def write(self, block_size: int, lines: Sequence[str]) -> int:
        """Returns how many of these, which are about blocks of one size, are written, from the first on. Where that
        fails it is tried again only after a while."""
        num_written = 0
        while num_written < len(lines) and time.monotonic() >= self._retry_at:
            num_written += self._write_some(block_size, lines[num_written:])
        return num_written

    def close(self) -> None:
        os.close(self._file)

    def _write_some(self, block_size: int, lines: Sequence[str]) -> int:
        """Those for which there is room in one file, and one at least; 0: it failed."""
        size: int | None = None
        try:
            room, head = self._make_room(block_size, len(lines[0]) + 1)
            count = len(lines)
            if room is not None:
                ends = accumulate(len(line) + 1 for line in lines)
                count = max(1, sum(1 for end in ends if end <= room))
            size = os.fstat(self._file).st_size
            data = "".join(f"{line}\n" for line in (*head, *lines[:count])).encode()
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self._fail(error.strerror or str(error), size)
            return 0
        except ConfigurationError as error:
            self._fail(str(error), None)
            return 0
        self._block_size = block_size
        return count

    def _make_room(self, block_size: int, num_bytes: int) -> tuple[int | None, list[str]]:
        """Have the file of that name open, with room for ``num_bytes``; returns how much there is (None: no end of it)
        and the line that has to stand before."""
        if not self._is_there():
            self._reopen()
        head = header(self.start, block_size, __version__)
        heads = [] if self._block_size == block_size else [head]
        if self._rotation.max_bytes is None:
            return None, heads
        size = os.fstat(self._file).st_size
        room = self._rotation.max_bytes - size - sum(len(each) + 1 for each in heads)
        if room < num_bytes and size:
            self._rotation.put_aside(self._path)
            self._reopen()
            return self._rotation.max_bytes - len(head) - 1, [head]
        return room, heads

    def _reopen(self) -> None:
        before, self._file = self._file, self._begin()
        os.close(before)
        self._block_size = None

    def _fail(self, why: str, size: int | None) -> None:
        """``size``: of the whole lines, if some may have been written in part."""
        told = "Requests cannot be recorded in %s: %s. Tried again in %d s; the server goes on."
        logger.error(told, self._path, why, RETRY_SECONDS)
        self._retry_at = time.monotonic() + RETRY_SECONDS
        self._block_size = None
        try:
            if size is not None:
                os.ftruncate(self._file, size)
        except OSError:
            logger.warning("A line of %s may be cut off.", self._path)

    def _is_there(self) -> bool:
        """Is the open file still the one of that name?"""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._file))
        except OSError:
            return False

    def _begin(self) -> int:
        file = _open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        _cut(file)
        return file


def _open(path: Path, flags: int) -> int:
    """
    Raises:
        ConfigurationError: it holds something else.
    """
    file = os.open(path, flags, 0o600)
    head = os.pread(file, LONGEST_HEADER, 0)
    if head and MARK.encode() not in head.partition(b"\n")[0]:
        os.close(file)
        raise ConfigurationError(f"{path} is no request log; requests are recorded in files of their own")
    return file


def _cut(file: int) -> None:
    """Half a line at the end, of a process that was killed, goes."""
    size = end = os.fstat(file).st_size
    while end:
        start = max(0, end - 65536)
        at = os.pread(file, end - start, start).rfind(b"\n")
        if at >= 0:
            end = start + at + 1
            break
        end = start
    if end < size:
        os.ftruncate(file, end)
