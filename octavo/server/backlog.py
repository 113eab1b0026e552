"""Work that the event loop hands to a thread of its own, and never waits for."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


OVERFULL = "more came than could be kept up with"


class Lost(NamedTuple):
    """``why``: the last of them were."""

    number: int
    why: str


class Backlog(Generic[T]):
    """What was put and is not done yet, at most ``most``: what more comes is lost, and counted.

    ``work``: told in the thread ``name`` of the oldest, at most ``batch_size`` at a time; what it fails on is lost.
    ``at_end``: called there once all is done that was put before ``close``.
    """

    def __init__(
        self,
        work: Callable[[Sequence[T]], None],
        name: str,
        *,
        most: int,
        batch_size: int,
        at_end: Callable[[], None],
    ) -> None:
        self._work = work
        self._most = most
        self._batch_size = batch_size
        self._at_end = at_end
        self._pending: deque[T] = deque()
        self._news = threading.Condition()
        self._is_closing = False
        self._lost = Lost(0, "")
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)
        self._thread.start()

    def put(self, items: Sequence[T]) -> None:
        """Returns at once."""
        with self._news:
            room = self._most - len(self._pending)
            self._pending.extend(items[:room])
            if len(items) > room:
                self._lost = Lost(self._lost.number + len(items) - room, OVERFULL)
            self._news.notify()

    def lose(self, count: int, why: str) -> None:
        """So many are not done."""
        with self._news:
            self._lost = Lost(self._lost.number + count, why)

    def take_lost(self) -> Lost:
        """What was lost since this was asked last."""
        with self._news:
            lost, self._lost = self._lost, Lost(0, "")
        return lost

    def close(self, timeout: float) -> None:
        """Do what was put, within so many seconds. May be repeated."""
        with self._news:
            self._is_closing = True
            self._news.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        while batch := self._next():
            try:
                self._work(batch)
            except Exception as error:
                logger.exception("The thread %s failed on %d items.", self._thread.name, len(batch))
                self.lose(len(batch), type(error).__name__)
        self._at_end()

    def _next(self) -> list[T]:
        """Empty once there will be no more."""
        with self._news:
            self._news.wait_for(lambda: self._pending or self._is_closing)
            batch = list(islice(self._pending, self._batch_size))
            for _ in batch:
                self._pending.popleft()
        return batch
