"""The Azure LLM inference traces, as published: CSV with TIMESTAMP, ContextTokens, GeneratedTokens."""

import csv
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from octavo.core.errors import ConfigurationError
from octavo.sim.traces.lines import Line, Reader, TraceFile
from octavo.sim.traces.request import BadTraceLineError, TracedRequest, check_lengths

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_azure(file: TraceFile, *, lenient: bool = False) -> tuple[Iterator[TracedRequest], Reader]:
    """Requests in order of arrival, and their reader, which counts what it leaves out.

    Raises:
        ConfigurationError: a column is missing, or (while it is read) a line is no request.
    """
    lines = file.lines()
    header = next(lines, Line(1, "", True))
    try:
        names = _fields(header.text)
    except BadTraceLineError as error:
        raise ConfigurationError(f"line {header.number} of {file.path}: {error}") from None
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise ConfigurationError(
            f"line {header.number} of {file.path} names no column {', '.join(missing)}; it has {', '.join(names)}"
        )
    places = [names.index(name) for name in COLUMNS]
    reader = Reader(file, lenient=lenient, has_duplicates=False)
    parser = _Parser(len(names), places)
    return reader.requests(parser.parse, lines), reader


def _fields(text: str) -> list[str]:
    """
    Raises:
        BadTraceLineError: it is no line of CSV.
    """
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        raise BadTraceLineError("no CSV") from None


class _Parser:
    """``places``: of ``COLUMNS`` among the ``num_columns`` fields of a line."""

    def __init__(self, num_columns: int, places: Sequence[int]) -> None:
        self._num_columns = num_columns
        self._places = places
        self._epoch: datetime | None = None

    def parse(self, text: str) -> TracedRequest:
        fields = _fields(text)
        if len(fields) != self._num_columns:
            raise BadTraceLineError(
                f"the number of fields is {len(fields)} where the first line has {self._num_columns}"
            )
        time, prompt, output = (fields[place].strip() for place in self._places)
        lengths = _whole(prompt, COLUMNS[1]), _whole(output, COLUMNS[2])
        check_lengths(*lengths, names=(COLUMNS[1], COLUMNS[2]))
        return TracedRequest(self._seconds(time), *lengths)

    def _seconds(self, text: str) -> float:
        """Since the first request: exact to the microsecond, as the difference of two times is and their sum is not."""
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise BadTraceLineError(f"TIMESTAMP is {text!r:.40}, no time") from None
        time = time if time.tzinfo else time.replace(tzinfo=UTC)
        self._epoch = self._epoch or time
        return (time - self._epoch).total_seconds()


def _whole(text: str, name: str) -> int:
    try:
        if "_" not in text:  # Python's own notation
            return int(text)
    except ValueError:
        pass
    raise BadTraceLineError(f"{name} is {text!r:.40}, no whole number")
