"""What a run looked like over time, in bounded memory."""

from collections.abc import Callable
from typing import NamedTuple

from octavo.core.scheduler import Scheduler
from octavo.sim.filled import num_unfilled_slots

MAX_POINTS = 1024
FIRST_INTERVAL = 0.5


class Point(NamedTuple):
    """One moment, over all servers. ``filled``: share of all slots that hold a token of a running request; ``held``:
    share of all blocks that are given to such. ``preemptions``: so far."""

    seconds: float
    filled: float
    held: float
    running: int
    waiting: int
    preemptions: int


class Series:
    """A point every ``interval`` seconds; once there are too many, every second one goes and the interval doubles.
    Servers have blocks of one size; requests are not forked, and nothing is pinned."""

    def __init__(self, schedulers: list[Scheduler]) -> None:
        self.points: list[Point] = []
        self.interval = FIRST_INTERVAL
        self.next_due = 0.0
        self._schedulers = schedulers

    def look(self, now: float) -> None:
        """Time has come to ``next_due``."""
        each, pools = self._schedulers, [scheduler.kv.pool for scheduler in self._schedulers]
        num_blocks = sum(pool.num_blocks for pool in pools)
        num_held = sum(pool.num_blocks - pool.num_free for pool in pools)
        size = each[0].kv.config.block_size
        num_filled = num_held * size - sum(map(num_unfilled_slots, each))
        self._add(
            Point(
                seconds=now,
                filled=num_filled / (num_blocks * size),
                held=num_held / num_blocks,
                running=sum(len(scheduler.running) for scheduler in each),
                waiting=sum(scheduler.num_waiting for scheduler in each),
                preemptions=sum(scheduler.counters.num_preemptions for scheduler in each),
            )
        )

    def stand_idle(self, until: float) -> None:
        """Nobody was there up to then; this too is part of what a run looks like."""
        preemptions = sum(scheduler.counters.num_preemptions for scheduler in self._schedulers)
        while self.next_due < until:
            self._add(Point(self.next_due, 0.0, 0.0, 0, 0, preemptions))

    def _add(self, point: Point) -> None:
        self.points.append(point)
        if len(self.points) == MAX_POINTS:
            self.points, self.interval = self.points[::2], 2 * self.interval
        self.next_due = point.seconds + self.interval

    def mean(self, of: Callable[[Point], float]) -> float | None:
        return sum(map(of, self.points)) / len(self.points) if self.points else None
