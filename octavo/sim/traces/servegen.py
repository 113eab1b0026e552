"""ServeGen's parameters ("ServeGen: Workload Characterization and Generation of Large Language Model Serving in
Production", Xiang et al., 2025): of each client, how often it sends and how long its prompts and answers are.

A folder, or a .tar.gz of one, with ``chunk-N-trace.csv`` (a line a window of ten minutes: its start in seconds,
requests a second, their coefficient of variation, the distribution of the pauses, and its shape and scale) and
``chunk-N-dataset.json`` (a distribution of prompt lengths and one of answer lengths, every six hours). Requests are
drawn from them.
"""

import ast
import json
import math
import random
import tarfile
import zlib
from bisect import bisect, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import merge
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from octavo.core.errors import ConfigurationError
from octavo.sim.traces.request import MAX_LENGTH, TracedRequest

PAUSES = ("Gamma", "Weibull")
TRACE, DATASET = "-trace.csv", "-dataset.json"


class Window(NamedTuple):
    """From ``start`` on ``rate`` requests come a second, with pauses of this ``shape`` and ``scale``."""

    start: float
    rate: float
    pauses: str
    shape: float
    scale: float


class Lengths(NamedTuple):
    """Lengths, and how likely it is that one is that long or shorter (up to the last: a factor)."""

    values: Sequence[int]
    cumulated: Sequence[float]

    def draw(self, source: random.Random) -> int:
        at = bisect(self.cumulated, source.random() * self.cumulated[-1])
        return self.values[min(at, len(self.values) - 1)]


class Dataset(NamedTuple):
    """From ``start`` on."""

    start: float
    prompts: Lengths
    outputs: Lengths


@dataclass(frozen=True)
class Client:
    """``windows``, ``datasets``: in order of time."""

    name: str
    windows: Sequence[Window]
    datasets: Sequence[Dataset]

    @cached_property
    def mean_rate(self) -> float:
        return sum(window.rate for window in self.windows) / len(self.windows)

    def requests(self, seed: str, factor: float) -> Iterator[TracedRequest]:
        """Drawn, ``factor`` times as many as it sent; the same each time. A pause that a window's end cuts off goes on
        at the rate of the next."""
        source = random.Random(f"{seed} {self.name}")
        starts = [dataset.start for dataset in self.datasets]
        left = 0.0  # of the pause that is under way, as a share of it
        for window, end in zip(self.windows, self._ends, strict=True):
            now = window.start
            while window.rate:
                pause = _draw_pause(window, source) / factor
                if left:
                    pause, left = pause * left, 0.0
                if now + pause >= end:
                    left = 1 - (end - now) / pause
                    break
                now += pause
                dataset = self.datasets[max(0, bisect_right(starts, now) - 1)]
                yield TracedRequest(now, dataset.prompts.draw(source), dataset.outputs.draw(source), tenant=self.name)

    @property
    def end(self) -> float:
        return self._ends[-1]

    @cached_property
    def _ends(self) -> list[float]:
        starts = [window.start for window in self.windows]
        last = starts[-1] - starts[-2] if len(starts) > 1 else 600.0
        return [*starts[1:], starts[-1] + last]


def _draw_pause(window: Window, source: random.Random) -> float:
    if window.pauses == "Gamma":
        return source.gammavariate(window.shape, window.scale)
    return source.weibullvariate(window.scale, window.shape)


class ServeGen:
    """``unused``: clients without lengths, which nothing can be drawn for.

    Raises:
        ConfigurationError: there is no client, or a file is not laid out so; names the file and line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        texts = _read_files(path)
        traces = {name.removesuffix(TRACE): text for name, text in texts.items() if name.endswith(TRACE)}
        self.unused = sorted(name for name in traces if name + DATASET not in texts)
        self.clients = [
            Client(Path(name).name, self._windows(name + TRACE, text), self._datasets(name + DATASET, texts))
            for name, text in sorted(traces.items())
            if name + DATASET in texts
        ]
        if not self.clients:
            raise ConfigurationError(f"{path} holds no client with chunk-N{TRACE} and chunk-N{DATASET}")

    @property
    def mean_rate(self) -> float:
        """Requests a second, of all clients, over the whole time."""
        return sum(client.mean_rate for client in self.clients)

    @property
    def end(self) -> float:
        """When the recording of the last client ends."""
        return max(client.end for client in self.clients)

    def requests(self, rate: float | None, seed: int) -> Iterator[TracedRequest]:
        """In order of arrival; ``rate`` a second on average instead of what was recorded."""
        factor = 1.0 if rate is None else rate / self.mean_rate
        return merge(*(client.requests(str(seed), factor) for client in self.clients), key=lambda each: each.seconds)

    def _windows(self, name: str, text: str) -> list[Window]:
        windows: list[Window] = []
        for number, line in enumerate(text.splitlines(), 1):
            fields = line.split(",")
            try:
                start, rate = float(fields[0]), float(fields[1])
                window = Window(start, rate, fields[3], float(fields[4]), float(fields[5]))
            except (ValueError, IndexError):
                raise self._wrong(name, f"line {number} is {line!r:.60}, not six fields of a window") from None
            is_known = not rate or (window.pauses in PAUSES and window.shape > 0 and window.scale > 0)
            if not (is_known and 0 <= rate < math.inf) or (windows and start <= windows[-1].start):
                raise self._wrong(name, f"line {number} is {line!r:.60}, no window after the one before it")
            windows.append(window)
        if not windows:
            raise self._wrong(name, "it is empty")
        return windows

    def _datasets(self, name: str, texts: Mapping[str, str]) -> list[Dataset]:
        """Distributions are written as Python writes a dict, inside of JSON; empty ones, of hours without requests, are
        left out: those before them go on."""
        try:
            found = [
                Dataset(float(start), _lengths(prompts), _lengths(outputs))
                for start, each in json.loads(texts[name]).items()
                if (prompts := ast.literal_eval(each["input_tokens"]))
                and (outputs := ast.literal_eval(each["output_tokens"]))
            ]
        except (ValueError, KeyError, TypeError, SyntaxError, AttributeError) as error:
            raise self._wrong(name, f"no lengths by time ({error})") from error
        if not found:
            raise self._wrong(name, "it holds no lengths")
        return sorted(found, key=lambda dataset: dataset.start)

    def _wrong(self, name: str, what: str) -> ConfigurationError:
        return ConfigurationError(f"{name} in {self.path}: {what}")


def is_servegen(path: Path) -> bool:
    """Is it a folder or an archive?"""
    try:
        return path.is_dir() or (path.is_file() and tarfile.is_tarfile(path))
    except (OSError, EOFError, zlib.error):  # a gzipped file that is cut off
        return False


def _lengths(shares: Mapping[float, float]) -> Lengths:
    """Those that occur; below one token there is none."""
    likely = sorted((int(value), share) for value, share in shares.items() if share > 0)
    if not likely or likely[-1][0] > MAX_LENGTH or likely[0][0] < 0:
        raise ValueError("a distribution holds no lengths")
    return Lengths([max(1, value) for value, _ in likely], list(accumulate(share for _, share in likely)))


def _read_files(path: Path) -> dict[str, str]:
    """The texts of all its files, by name."""
    try:
        if path.is_dir():
            return {str(file.relative_to(path)): file.read_text() for file in _named(path.rglob("chunk-*"))}
        with tarfile.open(path) as archive:
            members = [member for member in archive if member.isfile() and member.name.endswith((TRACE, DATASET))]
            return {member.name: _text(archive, member) for member in members}
    except (OSError, tarfile.TarError, UnicodeDecodeError, EOFError) as error:
        raise ConfigurationError(f"cannot read ServeGen's parameters in {path}: {error}") from error


def _named(paths: Iterator[Path]) -> Iterator[Path]:
    return (path for path in paths if path.name.endswith((TRACE, DATASET)))


def _text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = archive.extractfile(member)
    return file.read().decode() if file is not None else ""
