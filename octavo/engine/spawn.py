"""A process for an engine that is to be: it imports what it will need while its parent still finds out what that is."""

import atexit
import ctypes
import gc
import importlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

PROCESS_NAME = "octavo-engine"
EXIT_ORPHANED = 3
EXIT_UNGUARDED = 4


class SpawnedProcess:
    """Starts at once, with an interpreter of its own. ``modules`` are imported there; then it does what ``begin`` says.

    It ends with this process, however that ends; at the end of a ``with`` it ends if it has not begun.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        if multiprocessing.current_process().name == PROCESS_NAME:
            os._exit(EXIT_UNGUARDED)  # the engine's process, reading a script that starts engines wherever it is read
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        self._work = here
        atexit.register(here.close)  # before multiprocessing waits for a process that has nothing to do
        self.process = context.Process(
            target=_wait_for_work, args=(there, tuple(modules), os.getpid()), name=PROCESS_NAME, daemon=True
        )
        self.process.start()
        there.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._work.closed:
            self.process.kill()
            self._work.close()

    def begin(self, work: Callable[..., object], *args: Any) -> None:
        """``work(*args)``, pickled and called there; the process ends with it."""
        with suppress(OSError), self._work as pipe:  # it is gone already: its end tells
            pipe.send((work, args))


def _wait_for_work(pipe: "Connection", modules: Sequence[str], parent_pid: int) -> None:
    _tie_to_parent(parent_pid)
    gc.disable()  # nothing of what is imported is garbage, and to look for some takes a tenth of the time
    for module in modules:
        with suppress(Exception):  # the work that needs it fails with a message
            importlib.import_module(module)
    gc.freeze()
    gc.enable()
    try:
        with pipe:
            work, args = pipe.recv()
    except EOFError:
        sys.exit(EXIT_ORPHANED)
    work(*args)


def _tie_to_parent(parent_pid: int) -> None:
    """End when the parent ends; leave signals of the terminal and of supervisors to the parent, which drains first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it ended before prctl took hold
        os._exit(EXIT_ORPHANED)
