"""How far a batch is: a bar on a terminal, a line in the log every ten seconds elsewhere."""

import logging
import sys
import time
from collections import deque
from typing import NamedTuple

from tqdm import tqdm

from octavo.engine.messages import EngineStats

logger = logging.getLogger(__name__)

WINDOW_SECONDS = 10.0
"""Tokens a second are those of the last so many, and so far apart are the lines of the log."""


class _Look(NamedTuple):
    time: float
    num_tokens: int


class Progress:
    """``num_before``: lines that were answered before; ``num_refused``: those of this run that have been refused.
    ``tick`` is to be called about once a second."""

    def __init__(self, num_lines: int, num_before: int, num_refused: int = 0) -> None:
        num_before += num_refused
        self._is_shown = sys.stderr.isatty()
        self._bar = tqdm(
            total=num_lines, initial=num_before, unit="line", smoothing=0.0, disable=not self._is_shown, leave=True
        )
        self._num_lines = num_lines
        self._num_before = num_before
        self.num_done = num_before
        self.num_refused = num_refused
        self.num_failed = 0
        self._start = self._logged = time.monotonic()
        self._looks: deque[_Look] = deque()

    def note(self, status: int | None) -> None:
        """A line has been answered; None: it could not be read."""
        self.num_done += 1
        self.num_refused += status is None or 400 <= status < 500
        self.num_failed += status is not None and status >= 500
        self._bar.update()

    def tick(self, stats: EngineStats) -> None:
        """``stats``: the engine's, as last heard of."""
        now = time.monotonic()
        self._looks.append(_Look(now, stats.prompt_tokens + stats.generation_tokens))
        while now - self._looks[0].time > WINDOW_SECONDS:
            self._looks.popleft()
        if self._is_shown:
            told = f"{self._tokens_per_second:.1f} tokens/s, {stats.kv_cache_usage:.0%} of the pool in use"
            self._bar.set_postfix_str(told, refresh=True)
        elif now - self._logged >= WINDOW_SECONDS:
            self._logged = now
            logger.info("%s", self.line(now))

    def line(self, now: float) -> str:
        """Lines done, tokens a second, time left."""
        return f"{self.done}, {self._tokens_per_second:.1f} tokens/s, {self._time_left(now)} left"

    @property
    def done(self) -> str:
        """How many lines of how many have a record."""
        return f"{self.num_done:,} of {self._num_lines:,} lines"

    def close(self) -> None:
        """No more is shown."""
        self._bar.close()

    @property
    def _tokens_per_second(self) -> float:
        if len(self._looks) < 2:
            return 0.0
        first, last = self._looks[0], self._looks[-1]
        return (last.num_tokens - first.num_tokens) / (last.time - first.time)

    def _time_left(self, now: float) -> str:
        num_new = self.num_done - self._num_before
        if not num_new:
            return "unknown time"
        return tqdm.format_interval((self._num_lines - self.num_done) * (now - self._start) / num_new)
