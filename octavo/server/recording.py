"""``--record FILE``: the log of requests that the simulator plays (docs/simulator.md).

It holds lengths, times and names of blocks, and no text.

The event loop only notes what has come and gone. A thread of its own hashes and writes; where it cannot keep up, or the
disk is full, requests go unrecorded, and the server says so and serves on.
"""

import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from octavo import __version__
from octavo.core.errors import ConfigurationError
from octavo.core.hashing import BlockHasher, pack_tokens
from octavo.core.tenants import DEFAULT_TENANT
from octavo.engine.interface import EngineLimits
from octavo.engine.messages import EngineRequest, OutputDelta
from octavo.sim.traces.request import TracedRequest
from octavo.sim.traces.request_log import MARK, header, to_line

logger = logging.getLogger(__name__)

MAX_PENDING = 4096
"""Choices that have ended and are not written yet; more go unrecorded."""

RETRY_SECONDS = 30.0
"""After a write that failed."""

LONGEST_HEADER = 1024
NAME_BITS = 31
_NAME_MASK = (1 << NAME_BITS) - 1


@dataclass(slots=True)
class _Open:
    """A request that has not ended, and the tokens of its choices so far; ``number``: of the first of these."""

    number: int
    request: EngineRequest
    block_size: int
    max_tokens: int
    answers: dict[int, list[int]] = field(default_factory=dict)


class _Ended(NamedTuple):
    number: int
    request: EngineRequest
    block_size: int
    max_tokens: int
    output_token_ids: list[int]


class RequestRecorder:
    """Told of requests by the event loop; see ``octavo.engine.client.Recorder``.

    Raises:
        ConfigurationError: the file cannot be written, or is something else than such a log.
    """

    def __init__(self, path: Path) -> None:
        self._open: dict[str, _Open] = {}
        self._next_number = 0
        self._pending: deque[_Ended] = deque()
        self._news = threading.Condition()
        self._is_closing = False
        self._num_lost = 0
        self._log = LogFile(path)
        self._namer = _Namer()
        self._thread = threading.Thread(target=self._write_all, daemon=True, name="recording")
        self._thread.start()

    def begin(self, request: EngineRequest, limits: EngineLimits) -> None:
        room = limits.max_model_len - len(request.prompt_token_ids)
        asked = request.params.max_tokens if request.beam_search is None else request.beam_search.max_tokens
        max_tokens = room if asked is None else min(asked, room)
        self._open[request.request_id] = _Open(self._next_number, request, limits.block_size, max_tokens)
        self._next_number += request.num_choices

    def note(self, delta: OutputDelta) -> None:
        open_ = self._open.get(delta.request_id)
        if open_ is None:
            return
        open_.answers.setdefault(delta.index, []).extend(delta.token_ids)
        if delta.finish_reason is not None:
            self._put([_ended(open_, delta.index, open_.answers.pop(delta.index))])

    def forget(self, request_id: str) -> None:
        """It is over, or nobody waits for more of it."""
        open_ = self._open.pop(request_id, None)
        if open_ is not None:
            self._put([_ended(open_, index, token_ids) for index, token_ids in open_.answers.items()])

    def close(self, timeout: float = 5.0) -> None:
        """Write what has come, within so many seconds."""
        with self._news:
            self._is_closing = True
            self._news.notify()
        self._thread.join(timeout)

    def _put(self, ended: Sequence[_Ended]) -> None:
        """Those without a token are left out: nothing of them was answered."""
        with self._news:
            for each in ended:
                if len(self._pending) >= MAX_PENDING:
                    self._num_lost += 1
                elif each.output_token_ids:
                    self._pending.append(each)
            self._news.notify()

    def _write_all(self) -> None:
        while True:
            with self._news:
                while not self._pending and not self._is_closing:
                    self._news.wait()
                if not self._pending:
                    break
                batch = list(self._pending)
                self._pending.clear()
            self._write(batch)
        self._log.close()

    def _write(self, batch: Sequence[_Ended]) -> None:
        """``batch``: at least one."""
        by_size = self._log.headed(batch[0].block_size)
        lines = [self._namer.line(each, self._log.start) for each in batch]
        is_written = self._log.write([*by_size, *lines])
        with self._news:
            lost = self._num_lost
            self._num_lost = 0 if is_written else lost + len(batch)
        if is_written and lost:
            logger.warning("Requests are recorded again; %d were not.", lost)


def _ended(open_: _Open, index: int, token_ids: list[int]) -> _Ended:
    return _Ended(open_.number + index, open_.request, open_.block_size, open_.max_tokens, token_ids)


class _Namer:
    """Names of blocks and tenants: hashes under a key that is kept nowhere else."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._hashers: dict[int, BlockHasher] = {}

    def line(self, ended: _Ended, start: float) -> str:
        request = ended.request
        seconds = max(0.0, request.arrival_time - start)
        token_ids = request.prompt_token_ids + ended.output_token_ids
        traced = TracedRequest(
            seconds,
            len(request.prompt_token_ids),
            len(ended.output_token_ids),
            max(ended.max_tokens, len(ended.output_token_ids)),
            self._names(request, token_ids, ended.block_size),
            ended.block_size,
            self._tenant(request.tenant),
        )
        return to_line(ended.number, traced)

    def _names(self, request: EngineRequest, token_ids: list[int], block_size: int) -> list[int]:
        """As the prefix cache tells contents apart: by salt too."""
        hasher = self._hashers.setdefault(block_size, BlockHasher(block_size, self._key))
        chain = hasher.chain(request.cache_salt, min(request.num_open_tokens, len(request.prompt_token_ids)))
        hasher.extend(chain, token_ids, len(token_ids))
        hashes = chain.hashes
        tail = token_ids[len(hashes) * block_size :]
        if tail:
            hashes = [*hashes, hasher.hash_tail(chain.parents[-1], pack_tokens(tail))]
        return [int.from_bytes(block_hash[:4], "big") & _NAME_MASK for block_hash in hashes]

    def _tenant(self, name: str) -> str:
        return "" if name == DEFAULT_TENANT else blake2b(name.encode(), key=self._key, digest_size=4).hexdigest()


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
