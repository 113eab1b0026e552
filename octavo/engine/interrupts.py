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
    in_main_thread = threading.current_thread() is threading.main_thread()
    if previous in (None, signal.SIG_IGN) or not in_main_thread:
        yield _nothing_to_deliver
        return
    hits: list[tuple[int, FrameType | None]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        hits.append((number, frame))

    def deliver() -> None:
        while hits:
            hit = hits.pop(0)
            if callable(previous):
                previous(*hit)
            else:  # the process is to end
                signal.signal(signal.SIGINT, previous)
                signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, hold)
    try:
        yield deliver
    finally:
        if signal.getsignal(signal.SIGINT) is hold:  # else who handled one has put another in its place
            signal.signal(signal.SIGINT, previous)
        deliver()


def _nothing_to_deliver() -> None:
    """Interrupts are not held back."""
