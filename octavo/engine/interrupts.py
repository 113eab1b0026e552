"""Ctrl-C between steps and never within one: a step broken off in the middle would leave a plan half carried out."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Holds SIGINT back until the block has ended; then whoever handled it before does so.

    Signals reach the main thread alone, so elsewhere there is nothing to hold back.
    """
    previous = signal.getsignal(signal.SIGINT)
    if previous is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    hits: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: hits.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if hits and callable(previous):
            previous(*hits[0])
