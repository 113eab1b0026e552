"""Whether constraints can be followed, asked in a process of its own before a request is let in."""

import signal
import sys
import threading
from collections import OrderedDict

from octavo.core.errors import InvalidRequestError
from octavo.core.structured import Constraint
from octavo.worker_processes import WorkerEndedError, WorkerProcesses

CHECK_SECONDS = 1.2
"""A client is told within two that its grammar takes too long, the start of a process included."""

CHECK_NUM_BYTES = 2 * 2**30
"""Of address space, of which the process has taken a part before it looks at a grammar."""

MAX_KNOWN = 1024
MAX_KNOWN_BYTES = 16 * 2**20
"""Constraints that are known to be good are not asked about again."""


class ConstraintChecker:
    """``check`` may be called by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Constraint, None] = OrderedDict()
        self._num_known_bytes = 0
        path = ":".join(filter(None, sys.path))
        self._workers = WorkerProcesses(
            ["-m", "octavo.structured.check_worker"],
            lambda: {"seconds": CHECK_SECONDS, "num_bytes": CHECK_NUM_BYTES},
            {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        )

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
        try:
            answer: str | None = self._workers.ask({"kind": constraint.kind, "text": constraint.text})
        except WorkerEndedError as ended:
            raise InvalidRequestError(f"{param} takes too much: {_why_ended(ended.returncode)}", param) from None
        if answer is not None:
            raise InvalidRequestError(f"{param}: {answer}", param)
        self._note(constraint)

    def close(self) -> None:
        self._workers.close()

    def _note(self, constraint: Constraint) -> None:
        with self._lock:
            if constraint not in self._known:
                self._known[constraint] = None
                self._num_known_bytes += len(constraint.text)
            while len(self._known) > MAX_KNOWN or self._num_known_bytes > MAX_KNOWN_BYTES:
                dropped, _ = self._known.popitem(last=False)
                self._num_known_bytes -= len(dropped.text)


def _why_ended(returncode: int) -> str:
    if returncode == -signal.SIGALRM:
        return f"it is not compiled after {CHECK_SECONDS:g} s"
    return "it needs too much memory, or nests too deeply"
