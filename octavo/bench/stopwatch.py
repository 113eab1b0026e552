"""Where a step's time goes: a ``Timed`` (core/timing.py) that reads a clock."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Stopwatch:
    """Seconds spent in each part since they were last taken. A moment counts for one part only: while a part is inside
    another, the other one rests. ``clock``: seconds, since whenever. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = 0.0

    def __call__(self, part: str, function: Callable[P, R], /) -> Callable[P, R]:
        @wraps(function)
        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            self._pass()
            self._open.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._pass()
                self._open.pop()

        return timed

    def take(self) -> Mapping[str, float]:
        """What has been counted, by part; counting starts anew. Call it between two steps."""
        taken, self._seconds = self._seconds, defaultdict(float)
        return taken

    def _pass(self) -> None:
        """The time since the last call was that of the innermost part."""
        now = self._clock()
        if self._open:
            self._seconds[self._open[-1]] += now - self._since
        self._since = now
