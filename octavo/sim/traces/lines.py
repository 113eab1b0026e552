"""Lines of a file, gzipped or not, and what is done about those that are no requests."""

import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from stat import S_ISFIFO, S_ISSOCK
from typing import BinaryIO, NamedTuple

from octavo.core.errors import ConfigurationError
from octavo.sim.traces.request import BadTraceLineError, TracedRequest

MAX_LINE_BYTES = 16 << 20
"""Longer ones are no lines of a trace."""


class Line(NamedTuple):
    """``text`` without its end; ``is_whole``: it had one. The last line of a file that was cut off has none."""

    number: int
    text: str
    is_whole: bool


def check_is_lasting(path: Path) -> None:
    """
    Raises:
        ConfigurationError: what it holds can be read but once, and a trace is read more often.
        OSError: there is no such file.
    """
    mode = path.stat().st_mode
    if S_ISFIFO(mode) or S_ISSOCK(mode):
        raise ConfigurationError(f"{path} is a pipe, which can be read but once; write the trace to a file first")


class TraceFile:
    """Reads a file line by line, as often as it is asked to. ``share_read``: of its bytes, by the last reader."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.share_read = 0.0

    def lines(self) -> Iterator[Line]:
        """Lines that hold something.

        Raises:
            ConfigurationError: it cannot be read.
        """
        try:
            check_is_lasting(self.path)
            with self.path.open("rb") as raw:
                is_zipped = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                with gzip.open(raw) if is_zipped else nullcontext(raw) as file:
                    yield from self._lines(raw, file)
        except OSError as error:
            raise ConfigurationError(f"cannot read the trace {self.path}: {error.strerror or error}") from error
        except (EOFError, zlib.error) as error:
            raise ConfigurationError(f"{self.path} is neither text nor gzipped text: {error}") from error

    def _lines(self, raw: BinaryIO, file: BinaryIO | gzip.GzipFile) -> Iterator[Line]:
        """``file``: what ``raw`` holds."""
        num_bytes = max(1, self.path.stat().st_size)
        for number in count(1):
            line = file.readline(MAX_LINE_BYTES)
            if not line:
                return
            self.share_read = raw.tell() / num_bytes
            if len(line) == MAX_LINE_BYTES:
                raise ConfigurationError(f"line {number} of {self.path} is longer than {MAX_LINE_BYTES} bytes")
            # What is no text is no line of a trace either, and its reader says which line it is.
            if text := line.decode("utf-8-sig" if number == 1 else "utf-8", "backslashreplace").strip():
                yield Line(number, text, line.endswith(b"\n"))


class Reader:
    """Requests of one file. ``lenient``: what is wrong is left out and counted in ``skipped``, by what it was.

    ``has_duplicates``: more than one request may come at the same moment.
    """

    def __init__(self, file: TraceFile, *, lenient: bool = False, has_duplicates: bool = True) -> None:
        self._file = file
        self._lenient = lenient
        self._has_duplicates = has_duplicates
        self.skipped: Counter[str] = Counter()

    def requests(self, parse: Callable[[str], TracedRequest], lines: Iterator[Line]) -> Iterator[TracedRequest]:
        """Each of these lines through ``parse``, in order of time; the first is the moment from which time counts.

        Raises:
            ConfigurationError: a line is no such request, or its time is before the one before; names the line.
        """
        first = last = None
        for line in lines:
            try:
                request = parse(line.text)
                self._check_order(request.seconds, last)
            except BadTraceLineError as error:
                self.note(line.number, str(error), line.is_whole)
                continue
            first = request.seconds if first is None else first
            last = request.seconds
            yield request._replace(seconds=last - first)

    def _check_order(self, seconds: float, last: float | None) -> None:
        if last is None:
            return
        if seconds < last:
            raise BadTraceLineError(f"its time is {last - seconds:g} seconds before that of the request before it")
        if seconds == last and not self._has_duplicates:
            raise BadTraceLineError("its time is that of the request before it: the same request twice?")

    def note(self, number: int, what: str, is_whole: bool = True) -> None:
        """Line ``number`` is no request; ``is_whole``: it had an end.

        Raises:
            ConfigurationError: always, unless lenient.
        """
        if not self._lenient:
            what = what if is_whole else f"cut off ({what})"
            raise ConfigurationError(
                f"line {number} of {self._file.path}: {what}; --lenient leaves out such lines and counts them"
            )
        if not is_whole:
            what = "cut off"
        elif not what.startswith("there is "):
            what = what.partition(" is ")[0]  # the field, without its value
        self.skipped[what] += 1
