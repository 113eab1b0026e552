"""How far a call of ``LLM`` is, for whoever waits at a terminal."""

import time
from collections.abc import Callable
from typing import Self

from tqdm import tqdm

from octavo.engine.messages import EngineOutputs, EngineStats

SHOWN_AFTER_SECONDS = 1.0
LEAST_SECONDS = 0.5
"""Between two figures."""


class CallProgress:
    """A bar on standard error with tokens a second and how full the pool is, if that is a terminal and the call takes
    long; TQDM_DISABLE=1 in the environment turns it off. ``stats``: asked for at most twice a second."""

    def __init__(self, num_choices: int, stats: Callable[[], EngineStats]) -> None:
        self._bar = tqdm(
            total=num_choices, desc="answers", unit="", delay=SHOWN_AFTER_SECONDS, disable=None, leave=False
        )
        self._stats = stats
        self._num_tokens = 0
        self._began = self._told = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def note(self, news: EngineOutputs) -> None:
        """A step has brought ``news``."""
        if self._bar.disable:
            return
        self._num_tokens += sum(len(delta.token_ids) for delta in news.deltas)
        self._bar.update(len(news.finished))
        now = time.monotonic()
        if now - self._told >= LEAST_SECONDS and now - self._began >= SHOWN_AFTER_SECONDS:
            self._told = now
            rate, use = self._num_tokens / (now - self._began), self._stats().kv_cache_usage
            self._bar.set_postfix_str(f"{rate:,.0f} tokens/s, {use:.0%} of the pool in use")
