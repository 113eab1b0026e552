"""A trace of any format, as its content says, read as often as it is asked for."""

import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from octavo.core.errors import ConfigurationError
from octavo.sim.traces.azure import COLUMNS, read_azure
from octavo.sim.traces.lengths import DEFAULT_RATE, poisson
from octavo.sim.traces.lines import Reader, TraceFile, check_is_lasting
from octavo.sim.traces.mooncake import read_mooncake
from octavo.sim.traces.request import TracedRequest
from octavo.sim.traces.request_log import MARK, read_request_log
from octavo.sim.traces.servegen import ServeGen, is_servegen

Read = Callable[..., tuple[Iterator[TracedRequest], Reader]]

READERS: dict[str, Read] = {"azure": read_azure, "mooncake": read_mooncake, "octavo": read_request_log}
"""Of files with a request a line."""

SERVEGEN, SHAREGPT = "servegen", "sharegpt"
FORMATS = (*READERS, SERVEGEN, SHAREGPT)

_HEAD_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a trace is played: ``speed`` times as fast as it was, or so that ``rate`` requests come a second on
    average; and at most ``limit`` requests of it. ``seed``: where times or lengths are drawn."""

    speed: float = 1.0
    rate: float | None = None
    limit: int | None = None
    seed: int = 0


AS_IT_WAS = Pace()


class Source(Protocol):
    """Traffic to play. ``skipped``: what the last reader left out, by what was wrong with it; ``share_read``: of the
    trace, by that reader, 0 where nobody knows; ``notes``: to be told before it is played."""

    @property
    def format(self) -> str: ...

    @property
    def skipped(self) -> Counter[str]: ...

    @property
    def share_read(self) -> float: ...

    @property
    def notes(self) -> Sequence[str]: ...

    def requests(self, pace: Pace = AS_IT_WAS) -> Iterator[TracedRequest]:
        """From the first one on, in order of time.

        Raises:
            ConfigurationError: the trace is none, or cannot be played so.
        """
        ...


def detect_format(path: Path) -> str:
    """The format of a trace, by how it begins.

    Raises:
        ConfigurationError: it cannot be read, or is none of ``FORMATS``.
    """
    if is_servegen(path):
        return SERVEGEN
    head = _head(path).lstrip("\ufeff \r\n\t")
    line = head.partition("\n")[0]
    if not head:
        raise ConfigurationError(f"the trace {path} is empty")
    if any(column in line for column in COLUMNS):
        return "azure"
    if f'"{MARK}"' in line:
        return "octavo"
    if '"hash_ids"' in head or '"input_length"' in head:
        return "mooncake"
    if head.startswith("["):
        return SHAREGPT
    raise ConfigurationError(
        f"{path} is no trace of a known format ({', '.join(FORMATS)}): it begins with {line!r:.80}; --format says "
        "which it is"
    )


def _head(path: Path) -> str:
    try:
        check_is_lasting(path)
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if head.startswith(b"\x1f\x8b"):
            with gzip.open(path) as zipped:
                head = zipped.read(_HEAD_BYTES)
    except OSError as error:
        raise ConfigurationError(f"cannot read the trace {path}: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise ConfigurationError(f"{path} is neither text nor gzipped text: {error}") from error
    return head.decode("utf-8", errors="replace")


def open_source(path: Path, name: str | None = None, *, lenient: bool = False) -> Source:
    """A trace of one of ``FORMATS``, of that which it looks like where no ``name`` is given; but for ShareGPT, of which
    somebody has to count the tokens (``LengthsSource``).

    Raises:
        ConfigurationError: it is none.
    """
    name = name or detect_format(path)
    return ServeGenSource(path) if name == SERVEGEN else TraceSource(path, name, lenient=lenient)


class TraceSource:
    """A file with a request a line. ``lenient``: see Reader."""

    notes: Sequence[str] = ()

    def __init__(self, path: Path, name: str | None = None, *, lenient: bool = False) -> None:
        self.format = name or detect_format(path)
        self._file = TraceFile(path)
        self._lenient = lenient
        self.skipped: Counter[str] = Counter()

    @property
    def share_read(self) -> float:
        return self._file.share_read

    def requests(self, pace: Pace = AS_IT_WAS) -> Iterator[TracedRequest]:
        """For a ``rate`` the trace is read twice: once to learn its own."""
        speed = pace.speed if pace.rate is None else pace.rate / self._own_rate(pace.limit)
        for request in islice(self._read(), pace.limit):
            yield request._replace(seconds=request.seconds / speed)

    def _read(self) -> Iterator[TracedRequest]:
        requests, reader = READERS[self.format](self._file, lenient=self._lenient)
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


class ServeGenSource:
    """Drawn from ServeGen's parameters; the first moment is when their recording begins."""

    format = SERVEGEN

    def __init__(self, path: Path) -> None:
        self._parameters = ServeGen(path)
        self.skipped: Counter[str] = Counter()
        unused = self._parameters.unused
        self.notes = [f"{len(unused)} clients have no lengths and send nothing"] if unused else []
        self.share_read = 0.0

    def requests(self, pace: Pace = AS_IT_WAS) -> Iterator[TracedRequest]:
        for request in islice(self._parameters.requests(pace.rate, pace.seed), pace.limit):
            self.share_read = request.seconds / self._parameters.end
            yield request._replace(seconds=request.seconds / pace.speed)


class LengthsSource:
    """Requests of known lengths of prompts and answers, in this order, that come as a Poisson process."""

    notes: Sequence[str] = ()

    def __init__(self, name: str, lengths: Sequence[tuple[int, int]]) -> None:
        self.format = name
        self._lengths = lengths
        self._num_read = 0
        self.skipped: Counter[str] = Counter()

    @property
    def share_read(self) -> float:
        return self._num_read / max(1, len(self._lengths))

    def requests(self, pace: Pace = AS_IT_WAS) -> Iterator[TracedRequest]:
        """A ``speed`` is of one request a second."""
        rate = DEFAULT_RATE * pace.speed if pace.rate is None else pace.rate
        for request in islice(poisson(self._lengths, rate, pace.seed), pace.limit):
            self._num_read += 1
            yield request
