"""A trace of any format, as its content says, read as often as it is asked for."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from octavo.core.errors import ConfigurationError
from octavo.sim.traces.azure import COLUMNS, read_azure
from octavo.sim.traces.lines import Reader, TraceFile
from octavo.sim.traces.request import TracedRequest

Read = Callable[..., tuple[Iterator[TracedRequest], Reader]]

FORMATS: dict[str, Read] = {"azure": read_azure}


def detect_format(path: Path) -> str:
    """The format of a trace, by its first line.

    Raises:
        ConfigurationError: it cannot be read, or is none of ``FORMATS``.
    """
    line = next(TraceFile(path).lines(), None)
    if line is None:
        raise ConfigurationError(f"the trace {path} is empty")
    if any(column in line.text for column in COLUMNS):
        return "azure"
    raise ConfigurationError(
        f"{path} is no trace of a known format ({', '.join(FORMATS)}): its first line is {line.text!r:.80}; "
        "--format says which it is"
    )


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a trace is played: ``speed`` times as fast as it was, or so that ``rate`` requests come a second on
    average; and at most ``limit`` requests of it."""

    speed: float = 1.0
    rate: float | None = None
    limit: int | None = None


AS_IT_WAS = Pace()


class TraceSource:
    """``skipped``: lines that the last reader left out, by what was wrong with them."""

    def __init__(self, path: Path, name: str | None = None, *, lenient: bool = False) -> None:
        self.format = name or detect_format(path)
        self._file = TraceFile(path)
        self._lenient = lenient
        self.skipped: Counter[str] = Counter()

    @property
    def share_read(self) -> float:
        return self._file.share_read

    def requests(self, pace: Pace = AS_IT_WAS) -> Iterator[TracedRequest]:
        """From the first one on. For a ``rate`` the trace is read twice: once to learn its own.

        Raises:
            ConfigurationError: see the readers of ``FORMATS``; or it has no rate that could be changed.
        """
        speed = pace.speed if pace.rate is None else pace.rate / self._own_rate(pace.limit)
        for request in islice(self._read(), pace.limit):
            yield request._replace(seconds=request.seconds / speed)

    def _read(self) -> Iterator[TracedRequest]:
        requests, reader = FORMATS[self.format](self._file, lenient=self._lenient)
        self.skipped = reader.skipped
        return requests

    def _own_rate(self, limit: int | None) -> float:
        """Requests a second, of the part that is played."""
        count, seconds = 0, 0.0
        for request in islice(self._read(), limit):
            count, seconds = count + 1, request.seconds
        if not seconds:
            raise ConfigurationError(
                f"the {count} requests of {self._file.path} all come at one moment: no --rate can be made of that"
            )
        return (count - 1) / seconds
