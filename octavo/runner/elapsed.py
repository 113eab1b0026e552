"""How long parts of a step take, as the runner tells it with every result (RunnerSeconds)."""

import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Elapsed:
    """Adds up the seconds that functions take. For one thread."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def of(self, function: Callable[P, R]) -> Callable[P, R]:
        """``function``, whose time counts."""

        @wraps(function)
        def counted(*args: P.args, **kwargs: P.kwargs) -> R:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._seconds += time.perf_counter() - start

        return counted

    def take(self) -> float:
        """Those since the last call."""
        taken, self._seconds = self._seconds, 0.0
        return taken
