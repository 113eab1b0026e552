"""Whether constraints can be followed, asked in a process of its own before a request is let in."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from typing import IO, cast

from octavo.core.errors import InvalidRequestError
from octavo.core.structured import Constraint

CHECK_SECONDS = 1.2
"""A client is told within two that its grammar takes too long, the start of a process included."""

MAX_IDLE = 2

CHECK_NUM_BYTES = 2 * 2**30
"""Of address space, of which the process has taken a part before it looks at a grammar."""

MAX_KNOWN = 1024
MAX_KNOWN_BYTES = 16 * 2**20
"""Constraints that are known to be good are not asked about again."""


class ConstraintChecker:
    """``check`` may be called by several threads; each that finds no process idle starts one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._known: OrderedDict[Constraint, None] = OrderedDict()
        self._num_known_bytes = 0
        self._is_closed = False

    def knows(self, constraint: Constraint) -> bool:
        """Was it found to be good before? Takes no time."""
        with self._lock:
            if constraint not in self._known:
                return False
            self._known.move_to_end(constraint)
            return True

    def check(self, constraint: Constraint, param: str) -> None:
        """
        Raises:
            InvalidRequestError: it cannot be followed, or takes too much; ``param`` is the field that holds it.
        """
        worker = self._take()
        try:
            answer, was_answered = _exchange(worker, constraint)
        except BaseException:  # the answer is still in the pipe
            _end(worker)
            raise
        if not was_answered:
            _end(worker)
            raise InvalidRequestError(f"{param} takes too much: {_why_ended(worker.returncode)}", param)
        self._give_back(worker)
        if answer is not None:
            raise InvalidRequestError(f"{param}: {answer}", param)
        self._note(constraint)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for worker in idle:
            _end(worker)

    def _note(self, constraint: Constraint) -> None:
        with self._lock:
            if constraint not in self._known:
                self._known[constraint] = None
                self._num_known_bytes += len(constraint.text)
            while len(self._known) > MAX_KNOWN or self._num_known_bytes > MAX_KNOWN_BYTES:
                dropped, _ = self._known.popitem(last=False)
                self._num_known_bytes -= len(dropped.text)

    def _take(self) -> "subprocess.Popen[bytes]":
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.poll() is None:
                    return worker
                _end(worker)  # the system has ended it, for nothing that was asked of it now
        # -P: no module of the working folder is taken for one of Octavo's or Python's. A session of its own: an
        # interrupt from the keyboard is for the server; the process ends when its input does.
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "octavo.structured.check_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ
            | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(filter(None, sys.path))},
            start_new_session=True,
        )
        _send(worker, {"seconds": CHECK_SECONDS, "num_bytes": CHECK_NUM_BYTES})
        return worker

    def _give_back(self, worker: "subprocess.Popen[bytes]") -> None:
        with self._lock:
            if len(self._idle) < MAX_IDLE and not self._is_closed:
                self._idle.append(worker)
                return
        _end(worker)


def _send(worker: "subprocess.Popen[bytes]", value: object) -> None:
    stdin = cast("IO[bytes]", worker.stdin)
    try:
        stdin.write(json.dumps(value).encode() + b"\n")
        stdin.flush()
    except BrokenPipeError:
        pass  # it has ended: the missing answer says so


def _exchange(worker: "subprocess.Popen[bytes]", constraint: Constraint) -> tuple[str | None, bool]:
    """The worker's answer, and whether there is one; the worker's own alarm bounds the wait."""
    _send(worker, {"kind": constraint.kind, "text": constraint.text})
    line = cast("IO[bytes]", worker.stdout).readline()
    return (json.loads(line), True) if line.endswith(b"\n") else (None, False)


def _end(worker: "subprocess.Popen[bytes]") -> None:
    worker.kill()
    try:
        worker.communicate()  # closes the pipes and waits
    except BrokenPipeError:
        worker.wait()


def _why_ended(returncode: int | None) -> str:
    if returncode == -signal.SIGALRM:
        return f"it is not compiled after {CHECK_SECONDS:g} s"
    return "it needs too much memory, or nests too deeply"
