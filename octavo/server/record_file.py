"""The file of ``--record``, written line by line by a server that goes on whatever becomes of the disk."""

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from octavo import __version__
from octavo.core.errors import ConfigurationError
from octavo.sim.traces.request_log import MARK, header

logger = logging.getLogger(__name__)

RETRY_SECONDS = 30.0
"""After a write that failed."""

LONGEST_HEADER = 1024


class LogFile:
    """Lines at the end of a file, whole ones only. A file that was moved away is begun anew. ``start``: of the run.

    Raises:
        ConfigurationError: it cannot be written, or holds something else.
    """

    def __init__(self, path: Path) -> None:
        self.start = time.time()
        self._path = path
        self._block_size: int | None = None
        self._retry_at = 0.0
        try:
            self._file = self._open()
        except OSError as error:
            raise ConfigurationError(f"cannot record requests in {path}: {error.strerror or error}") from error

    def headed(self, block_size: int) -> list[str]:
        """The line that has to stand before the next one, if any."""
        if self._block_size == block_size and self._is_there():
            return []
        self._block_size = block_size
        return [header(self.start, block_size, __version__)]

    def write(self, lines: Sequence[str]) -> bool:
        """All of these, or, where that fails, none: then it is tried again only after a while."""
        if time.monotonic() < self._retry_at:
            self._block_size = None
            return False
        data, size = "".join(f"{line}\n" for line in lines).encode(), None
        try:
            if not self._is_there():
                before, self._file = self._file, self._open()
                os.close(before)
            size = os.fstat(self._file).st_size
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self._fail(error.strerror or str(error), size)
            return False
        except ConfigurationError as error:
            self._fail(str(error), None)
            return False
        return True

    def close(self) -> None:
        os.close(self._file)

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

    def _open(self) -> int:
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        head = os.pread(file, LONGEST_HEADER, 0)
        if head and MARK.encode() not in head.partition(b"\n")[0]:
            os.close(file)
            raise ConfigurationError(f"{self._path} is no request log; requests are recorded in a file of their own")
        self._cut(file)
        return file

    def _cut(self, file: int) -> None:
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
