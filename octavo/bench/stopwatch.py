"""Where a step's time goes, seen from outside: public methods are wrapped while a measurement runs."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch


class Stopwatch:
    """Seconds spent inside methods, by name. A name's time includes that of watched methods called from within."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def watch(self, methods: Sequence[tuple[str, type, str]]) -> Iterator[None]:
        """Times each (name, class, method) inside the ``with`` block; after it the classes are as they were."""
        patches = [patch.object(owner, method, self._timed(name, owner, method)) for name, owner, method in methods]
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in patches:
                each.stop()

    def _timed(self, name: str, owner: type, method: str) -> Callable[..., Any]:
        original = getattr(owner, method)

        @wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds[name] += time.perf_counter() - start

        return timed
