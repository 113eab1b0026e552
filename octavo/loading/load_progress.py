"""How far the weights are loaded, in the log, for whoever waits for a large model."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping

logger = logging.getLogger(__name__)

SECONDS = 5.0
"""Between two lines: a start that is quicker says nothing."""


class LoadProgress:
    """``sizes``: bytes of the tensors that are needed, by name. ``clock``: seconds that only grow."""

    def __init__(self, sizes: Mapping[str, int], clock: Callable[[], float] = time.monotonic) -> None:
        self._left = dict(sizes)
        self._num_bytes = sum(sizes.values())
        self._num_done = 0
        self._clock = clock
        self._began = self._told = clock()

    def note(self, names: Iterable[str]) -> None:
        """These have been read; one that was before counts once."""
        self._num_done += sum(self._left.pop(name, 0) for name in names)
        now = self._clock()
        if now - self._told < SECONDS or not self._left:
            return
        self._told = now
        share = 100 * self._num_done / max(1, self._num_bytes)
        logger.info(
            "Loading weights: %.0f %% of %.2f GiB after %.0f s", share, self._num_bytes / 2**30, now - self._began
        )
