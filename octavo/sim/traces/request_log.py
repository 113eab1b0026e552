"""Octavo's own request log, as ``octavo serve --record`` writes it: JSON lines, one a request when it has ended.

There is no text in it; docs/simulator.md describes the fields.

A line whose first field is ``octavo_request_log`` begins a run of a server; times count from its ``start``.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

from octavo.core.errors import ConfigurationError
from octavo.sim.traces.json_lines import parse_object, time, whole
from octavo.sim.traces.lines import Reader, TraceFile
from octavo.sim.traces.request import BadTraceLineError, TracedRequest, check_lengths

MARK = "octavo_request_log"
VERSION = 1

NAME_DIGITS = 8
"""Hexadecimal ones of a block's name."""

_HEXADECIMAL = re.compile("[0-9a-f]*")

MAX_BLOCK_SIZE = 1 << 16
"""Tokens; no server's blocks have more."""

MAX_LATE = 1 << 16
"""Requests that may end before one that came before them: the log is in order of their ends."""


def header(start: float, block_size: int, octavo: str) -> str:
    """The line that begins a run; ``start``: seconds since 1970."""
    return json.dumps({MARK: VERSION, "octavo": octavo, "start": start, "block_size": block_size})


def to_line(number: int, request: TracedRequest) -> str:
    """``number``: of the request in its run; its time counts from the start of the run."""
    fields: dict[str, object] = {
        "n": number,
        "t": round(request.seconds, 6),
        "prompt": request.prompt,
        "output": request.output,
    }
    if request.max_tokens is not None:
        fields["max_tokens"] = request.max_tokens
    fields["blocks"] = "".join(f"{name:0{NAME_DIGITS}x}" for name in request.blocks)
    if request.tenant:
        fields["tenant"] = request.tenant
    return json.dumps(fields, separators=(",", ":"))


class _Entry(NamedTuple):
    """``run``, ``number``: which request it is; no two are the same."""

    seconds: float
    run: int
    number: int
    line: int
    request: TracedRequest


def read_request_log(file: TraceFile, *, lenient: bool = False) -> tuple[Iterator[TracedRequest], Reader]:
    """Requests in order of arrival, and their reader, which counts what it leaves out.

    Raises:
        ConfigurationError: a later version wrote it, or (while it is read) a line is no request.
    """
    reader = Reader(file, lenient=lenient)
    return _Log(file, reader).requests(), reader


class _Log:
    def __init__(self, file: TraceFile, reader: Reader) -> None:
        self._file = file
        self._reader = reader
        self._run = 0
        self._start = 0.0
        self._block_size = 0

    def requests(self) -> Iterator[TracedRequest]:
        first: float | None = None
        last: _Entry | None = None
        for entry in self._in_order():
            first = entry.seconds if first is None else first
            if last is not None and entry[:3] == last[:3]:
                self._reader.note(entry.line, f"request number {entry.number} of its run is there twice")
                continue
            last = entry
            yield entry.request._replace(seconds=entry.seconds - first)

    def _in_order(self) -> Iterator[_Entry]:
        """By time; at most ``MAX_LATE`` are held back."""
        held: list[_Entry] = []
        last: _Entry | None = None
        for entry in self._entries():
            if last is not None and entry[:3] < last[:3]:
                self._reader.note(entry.line, f"more than {MAX_LATE} requests that came later stand before it")
                continue
            heappush(held, entry)
            if len(held) > MAX_LATE:
                last = heappop(held)
                yield last
        while held:
            yield heappop(held)

    def _entries(self) -> Iterator[_Entry]:
        for line in self._file.lines():
            try:
                entry = self._parse(line.text, line.number)
            except BadTraceLineError as error:
                self._reader.note(line.number, str(error), line.is_whole)
                continue
            if entry is not None:
                yield entry

    def _parse(self, text: str, line: int) -> _Entry | None:
        """None where a run begins."""
        fields = parse_object(text)
        if MARK in fields:
            if fields[MARK] != VERSION:
                raise ConfigurationError(
                    f"line {line} of {self._file.path}: the log has version {fields[MARK]!r:.40}, this Octavo reads "
                    f"{VERSION}"
                )
            self._block_size = 0
            self._start, self._block_size = time(fields, "start"), _block_size(fields)
            self._run += 1
            return None
        if not self._block_size:
            raise BadTraceLineError(f"no line with {MARK} is before it")
        prompt, output = whole(fields, "prompt"), whole(fields, "output")
        check_lengths(prompt, output, names=("prompt", "output"))
        max_tokens = whole(fields, "max_tokens") if "max_tokens" in fields else None
        if max_tokens is not None and max_tokens < output:
            raise BadTraceLineError(f"max_tokens is {max_tokens!r:.40}, but it had {output}")
        seconds = self._start + time(fields, "t")
        blocks = _names(fields.get("blocks", ""), most=-(-(prompt + output) // self._block_size))
        tenant = fields.get("tenant", "")
        if not isinstance(tenant, str):
            raise BadTraceLineError(f"tenant is {tenant!r:.40}, no name")
        request = TracedRequest(seconds, prompt, output, max_tokens, blocks, self._block_size, tenant)
        return _Entry(seconds, self._run, whole(fields, "n"), line, request)


def _block_size(fields: Mapping[str, Any]) -> int:
    size = whole(fields, "block_size")
    if not 1 <= size <= MAX_BLOCK_SIZE:
        raise BadTraceLineError(f"block_size is {size!r:.40}, not 1 to {MAX_BLOCK_SIZE}")
    return size


def _names(text: object, most: int) -> Sequence[int]:
    if not isinstance(text, str) or len(text) % NAME_DIGITS or not _HEXADECIMAL.fullmatch(text):
        raise BadTraceLineError(f"blocks is {text!r:.40}, not {NAME_DIGITS} hexadecimal digits a block")
    if len(text) > most * NAME_DIGITS:
        raise BadTraceLineError(f"the number of blocks is {len(text) // NAME_DIGITS}, but its tokens fill {most}")
    return [int(text[at : at + NAME_DIGITS], 16) for at in range(0, len(text), NAME_DIGITS)]
