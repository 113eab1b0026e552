"""Retention priorities: which cached blocks go before others, however recently they were used (docs/eviction.md).

The term and its range are TensorRT-LLM's (``KvCacheRetentionConfig``).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import groupby
from math import inf
from typing import Any, NamedTuple

from octavo.core.errors import InvalidRequestError
from octavo.core.evictor import Evictor, LRUEvictor

DEFAULT_PRIORITY = 35
MAX_PRIORITY = 100

MIN_SWEEP = 1024
"""Ends of priorities, of blocks that are here no more, below which a sweep is not worth it."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What a request leaves in the prefix cache is given up after all that is of lower ``priority`` (0 to 100) and
    before all of higher one; ``duration`` seconds after it was left it is as if nothing had been said (None: never).

    Raises:
        InvalidRequestError: out of range, or a duration for a priority that is not above the default.
    """

    priority: int = DEFAULT_PRIORITY
    duration: float | None = None

    def __post_init__(self) -> None:
        check_priority(self.priority, "retention_priority")
        if self.duration is None:
            return
        check_seconds(self.duration, "retention_duration")
        if self.priority <= DEFAULT_PRIORITY:
            raise InvalidRequestError(
                f"retention_duration needs a retention_priority above the default of {DEFAULT_PRIORITY}, got "
                f"{self.priority}; leave it out or raise the priority",
                "retention_duration",
            )


def check_priority(priority: Any, name: str) -> None:
    """
    Raises:
        InvalidRequestError: no retention priority; ``name`` is the field.
    """
    if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
        raise InvalidRequestError(
            f"{name} must be a whole number between 0 and {MAX_PRIORITY}, got {priority!r:.80}", name
        )


def check_seconds(seconds: Any, name: str) -> None:
    """
    Raises:
        InvalidRequestError: no time to live; ``name`` is the field.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < inf:
        raise InvalidRequestError(f"{name} must be a number of seconds above 0, got {seconds!r:.80}", name)


class _Level(NamedTuple):
    """A priority and when it falls back to the default, if it is above it."""

    priority: int
    until: float


_DEFAULT = _Level(DEFAULT_PRIORITY, inf)


def _higher(first: _Level, second: _Level) -> _Level:
    """The lowest level that is, at all times, at least either (and longer at that priority, where both end)."""
    low, high = sorted((first, second))
    if low.priority <= DEFAULT_PRIORITY:
        return high
    return _Level(high.priority, max(low.until, high.until))


class _Run:
    """Neighbours in a chain, children first, that were released together at one level. ``above``: what they follow."""

    __slots__ = ("above", "block_ids", "level")

    def __init__(self, level: _Level, block_ids: list[int], above: list[int]) -> None:
        self.level = level
        self.block_ids = block_ids
        self.above = above


class RetentionEvictor:
    """An ``Evictor`` that gives up blocks of the lowest priority first; among those of the default one ``default``
    decides, among those of another one recency does.

    Closed under prefix: whoever gives blocks up marks their whole chain, and a mark never lowers what is there; so a
    block is at least of the level of what follows it, and leaves go first. Comes in when the first priority is asked
    for, so that who asks for none pays for none.
    """

    def __init__(self, names: Sequence[bytes | None], default: Evictor) -> None:
        """``names``: the contents of each block of the pool by id, as the pool keeps them up to date; those there are
        now have the default priority. ``default``: the evictor so far."""
        self._names = names
        self._default = default
        self._now = -inf
        self._levels: dict[int, tuple[bytes, _Level]] = {}  # by block; holds for contents of this name alone
        self._queues: dict[int, LRUEvictor] = {}  # by priority
        self._runs: dict[int, _Run] = {}  # of each block in one of the queues
        self._ends: list[tuple[float, int, _Run]] = []  # a heap of runs whose level ends
        self._num_runs = 0
        self.mark(range(len(names)), Retention())

    def tell_time(self, now: float) -> None:
        """``now``: seconds, on the clock of all calls. Blocks whose priority has ended go back to the default one."""
        self._now = now
        while self._ends and self._ends[0][0] <= now:
            run, end = heappop(self._ends)[2], 0
            # Evictions take from the leaves' side, hits from the root's, or, in a group with a window, from between.
            for here, same in groupby(map(self._runs.get, run.block_ids)):
                start, end = end, end + len(list(same))
                if here is run:
                    piece = run.block_ids[start:end]
                    self._leave_queue(piece)
                    self._default.add(piece, run.block_ids[end:] + run.above)

    def mark(self, block_ids: Iterable[int], retention: Retention) -> None:
        """These blocks, which are in use, are of this priority when they are released, or of a higher one that they
        have already. Given is a whole chain; what has no name in it is left out."""
        until = inf if retention.duration is None else self._now + retention.duration
        level = _Level(retention.priority, until)
        for block_id in block_ids:
            name = self._names[block_id]
            if name is not None:
                is_known = self._levels.get(block_id, (b"",))[0] == name
                self._levels[block_id] = (name, _higher(self._level(block_id), level) if is_known else level)

    def add(self, block_ids: Iterable[int], above: Sequence[int] = ()) -> None:
        chain = list(block_ids)
        end = 0
        for level, same in groupby(map(self._level, chain)):
            start, end = end, end + len(list(same))
            self._add_run(_Run(level, chain[start:end], [*chain[end:], *above]))

    def remove(self, block_ids: Iterable[int]) -> None:
        block_ids = list(block_ids)
        self._default.remove([block_id for block_id in block_ids if block_id not in self._runs])
        self._leave_queue([block_id for block_id in block_ids if block_id in self._runs])

    def evict(self, count: int) -> list[int]:
        evicted: list[int] = []
        by_priority: dict[int, Evictor] = {**self._queues, DEFAULT_PRIORITY: self._default}
        for _, evictor in sorted(by_priority.items()):
            evicted += evictor.evict(min(count - len(evicted), len(evictor)))
        for block_id in evicted:
            self._runs.pop(block_id, None)
            self._levels.pop(block_id, None)
        return evicted

    def __len__(self) -> int:
        return len(self._default) + len(self._runs)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._runs or block_id in self._default

    def priority(self, block_id: int) -> int:
        """Of the contents of a block, now."""
        return self._level(block_id).priority

    def _level(self, block_id: int) -> _Level:
        name, level = self._levels.get(block_id, (b"", _DEFAULT))
        return level if name == self._names[block_id] and level.until > self._now else _DEFAULT

    def _add_run(self, run: _Run) -> None:
        if run.level.priority == DEFAULT_PRIORITY:
            self._default.add(run.block_ids, run.above)
            return
        self._queues.setdefault(run.level.priority, LRUEvictor()).add(run.block_ids)
        self._runs.update(dict.fromkeys(run.block_ids, run))
        if run.level.until < inf:
            self._num_runs += 1
            heappush(self._ends, (run.level.until, self._num_runs, run))
            if len(self._ends) > 2 * len(self._runs) + MIN_SWEEP:
                live = {id(run) for run in self._runs.values()}
                self._ends = sorted(end for end in self._ends if id(end[2]) in live)

    def _leave_queue(self, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            self._queues[self._runs.pop(block_id).level.priority].remove([block_id])
