"""``--record FILE``: the log of requests that the simulator plays (docs/simulator.md).

It holds lengths, times and names of blocks, and no text.

The event loop only notes what has come and gone. A thread of its own hashes and writes; where it cannot keep up, or the
disk is full, requests go unrecorded, and the server says so and serves on.
"""

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from octavo.core.hashing import BlockHasher, pack_tokens
from octavo.core.tenants import DEFAULT_TENANT
from octavo.engine.interface import EngineLimits
from octavo.engine.messages import EngineRequest, OutputDelta
from octavo.server.backlog import Backlog
from octavo.server.record_file import LogFile, Rotation
from octavo.sim.traces.request import TracedRequest
from octavo.sim.traces.request_log import to_line

logger = logging.getLogger(__name__)

MAX_PENDING = 4096
"""Choices that have ended and are not written yet; more go unrecorded."""

KEEP_ALL = Rotation()

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

    def __init__(self, path: Path, rotation: Rotation = KEEP_ALL) -> None:
        self._open: dict[str, _Open] = {}
        self._next_number = 0
        self._log = LogFile(path, rotation)
        self._namer = _Namer()
        self._backlog = Backlog(
            self._write, "recording", most=MAX_PENDING, batch_size=MAX_PENDING, at_end=self._log.close
        )

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
        self._backlog.close(timeout)

    def _put(self, ended: Sequence[_Ended]) -> None:
        """Those without a token are left out: nothing of them was answered."""
        self._backlog.put([each for each in ended if each.output_token_ids])

    def _write(self, batch: Sequence[_Ended]) -> None:
        """``batch``: at least one."""
        num_written = 0
        for block_size, same in groupby(batch, attrgetter("block_size")):
            lines = [self._namer.line(each, self._log.start) for each in same]
            num_written += self._log.write(block_size, lines)
        if num_written < len(batch):
            self._backlog.lose(len(batch) - num_written, "the file could not be written")
        elif lost := self._backlog.take_lost().number:
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
