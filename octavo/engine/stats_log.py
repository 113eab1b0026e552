"""The line that people grep for: throughput, queue and cache figures, about every ten seconds of work."""

import logging
from collections.abc import Callable

from octavo.engine.messages import EngineStats

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 10.0


class StatsLog:
    """Writes one line an interval; averages are over the time since the last line. ``clock`` counts seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_time = clock()
        self._last = EngineStats()

    def due(self) -> bool:
        return self._clock() - self._last_time >= INTERVAL_SECONDS

    def write(self, stats: EngineStats) -> None:
        now = self._clock()
        logger.info("%s", format_stats(stats, self._last, now - self._last_time))
        self._last, self._last_time = stats, now


def format_stats(stats: EngineStats, before: EngineStats, seconds: float) -> str:
    """The line for the ``seconds`` between two snapshots."""
    queries = stats.prefix_queries - before.prefix_queries
    hits = stats.prefix_hits - before.prefix_hits
    return (
        f"Avg prompt throughput: {(stats.prompt_tokens - before.prompt_tokens) / seconds:.1f} tokens/s, "
        f"Avg generation throughput: {(stats.generation_tokens - before.generation_tokens) / seconds:.1f} tokens/s, "
        f"Running: {stats.num_running} reqs, Waiting: {stats.num_waiting} reqs, "
        f"KV cache usage: {100 * stats.kv_cache_usage:.1f}%, "
        f"Prefix cache hit rate: {100 * hits / queries if queries else 0.0:.1f}%"
    )
