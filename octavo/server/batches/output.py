"""The output file of a batch: answers are appended as they come, and a run that follows goes on from them.

A record's id follows from the model's name and from its line in the input, so a file of records tells by itself whether
it is of this input, and which lines are answered.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from octavo.core.errors import ConfigurationError
from octavo.server.batches.lines import RECORD_ID_PREFIX, record_digest, text_digest

_BEGINNING = f'{{"id":"{RECORD_ID_PREFIX}'.encode()
"""Of every record, by which a file that is something else is known, and left alone."""


class _Response(msgspec.Struct):
    status_code: int


class _Record(msgspec.Struct):
    id: str
    custom_id: str | None
    response: _Response | None
    error: Any = None

    @property
    def is_final(self) -> bool:
        """A line that cannot be read may be mended, and what the server failed on, or had no room for, may go well
        the next time."""
        status = 0 if self.response is None else self.response.status_code
        return self.error is None and status < 500 and status != 429


class Found(NamedTuple):
    """What an earlier run has left: digests in the ids of the final records, those of their custom_ids, how many others
    there are, and where the last whole record ends. Digests, 16 bytes each, since all are in memory."""

    record_ids: set[bytes]
    custom_ids: set[bytes]
    num_to_repeat: int
    end: int


class OutputFile:
    """Locked while it is open: two runs never write to one file. ``found`` is there at once; nothing in the file is
    changed before ``prepare``.

    Raises:
        ConfigurationError: it cannot be opened, is another run's, or holds something else.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self.path = path
        with _explained(path):
            self._fd = _open_locked(path)
        self._is_dirty = False
        try:
            with _explained(path):
                self.found = Found(set(), set(), 0, 0) if overwrite else self._look()
        except BaseException:
            os.close(self._fd)
            raise
        self._end = self.found.end

    def close(self) -> None:
        """What was appended is on disk."""
        try:
            self.sync()
        finally:
            os.close(self._fd)

    def prepare(self) -> None:
        """Cut off half a record at the end, and take out those that are to be done again.

        Raises:
            ConfigurationError: there is no room, say; the file is as it was then.
        """
        with _explained(self.path):
            os.ftruncate(self._fd, self._end)
            if self.found.num_to_repeat:
                self._rewrite()
        _sync_folder(self.path.parent)

    def append(self, record: bytes) -> None:
        """``record``: one line, with its end. A half written one is taken back.

        Raises:
            ConfigurationError: the disk is full, say.
        """
        with _explained(self.path):
            try:
                _write_all(self._fd, record)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._end)
                raise
        self._end += len(record)
        self._is_dirty = True

    def sync(self) -> None:
        """What was appended until now outlives a loss of power."""
        if self._is_dirty:
            self._is_dirty = False
            with _explained(self.path):
                os.fdatasync(self._fd)

    def _look(self) -> Found:
        record_ids: set[bytes] = set()
        custom_ids: set[bytes] = set()
        num_to_repeat = end = 0
        for number, line in self._lines():
            if not line.endswith(b"\n"):
                if not (line.startswith(_BEGINNING) or _BEGINNING.startswith(line) or not line.strip(b"\0")):
                    raise self._foreign(number)
                break
            record = self._record(number, line)
            end += len(line)
            if record.is_final:
                record_ids.add(record_digest(record.id))
                custom_ids.add(text_digest(record.custom_id or ""))
            else:
                num_to_repeat += 1
        return Found(record_ids, custom_ids, num_to_repeat, end)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with open(self._fd, "rb", closefd=False) as file:
            file.seek(0)
            yield from enumerate(file, 1)

    def _record(self, number: int, line: bytes) -> _Record:
        if line.startswith(_BEGINNING):
            with contextlib.suppress(ValueError, RecursionError):
                record = msgspec.json.decode(line, type=_Record)
                record_digest(record.id)
                return record
        raise self._foreign(number)

    def _foreign(self, number: int) -> ConfigurationError:
        return ConfigurationError(
            f"line {number} of the output {self.path} is no answer of a batch; name another output, "
            "or have it overwritten with --overwrite"
        )

    def _rewrite(self) -> None:
        """The final records alone, in a new file that takes the place of this one whole, or not at all."""
        written, beside = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        try:
            os.close(written)
            shutil.copymode(self.path, beside)
            self._fd, before = self._rewritten(beside), self._fd
        except BaseException:
            os.unlink(beside)
            raise
        os.close(before)
        self._end = os.fstat(self._fd).st_size

    def _rewritten(self, beside: str) -> int:
        """A descriptor of ``beside``, locked, when it has become the output."""
        fd = os.open(beside, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        try:
            _lock(fd, self.path)
            for number, line in self._lines():
                if self._record(number, line).is_final:
                    _write_all(fd, line)
            os.fsync(fd)
            os.replace(beside, self.path)
        except BaseException:
            os.close(fd)
            raise
        return fd


def _open_locked(path: Path) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            if not path.is_file():
                raise ConfigurationError(f"the output {path} is no plain file")
            _lock(fd, path)
            # Another run may have put a new file in its place before it let go of this one.
            if os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigurationError(f"another run is writing to the output {path}") from None
    except OSError:
        return  # a file system without locks


def _sync_folder(folder: Path) -> None:
    """That there is this file, under this name, outlives a loss of power, where the file system can promise that."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    written = 0
    while written < len(data):
        written += os.write(fd, data[written:])


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"cannot write the output {path}: {error.strerror or error}") from error
