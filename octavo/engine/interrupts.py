"""Ctrl-C between steps and never within one: a step broken off in the middle would leave a plan half carried out."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_wait() -> Iterator[Callable[[], None]]:
    """Holds SIGINT back until the block has ended, or calls what it is given; then whoever handled it before does so.

    What an interrupt raises in the middle of things is lost where nobody can catch it, in a finalizer or a callback of
    the garbage collector. Signals reach the main thread alone, so elsewhere there is nothing to hold back.
    """
    previous = signal.getsignal(signal.SIGINT)
    if previous is None or threading.current_thread() is not threading.main_thread():
        yield _nothing_to_deliver
        return
    hits: list[tuple[int, FrameType | None]] = []

    def deliver() -> None:
        if hits and callable(previous):
            first = hits[0]
            hits.clear()
            previous(*first)

    signal.signal(signal.SIGINT, lambda number, frame: hits.append((number, frame)))
    try:
        yield deliver
    finally:
        signal.signal(signal.SIGINT, previous)
        deliver()


def _nothing_to_deliver() -> None:
    """Interrupts are not held back."""
