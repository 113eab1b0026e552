"""Processes for what comes from outside and may take too much: whatever one of them meets, it does to nobody else.

A worker reads its settings, a JSON value on a line, and then answers each line with one. It bounds itself: an alarm of
the kernel ends it where a line takes too long, and a limit of its address space bounds its memory.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, cast

MAX_IDLE = 2
_PIPE_BYTES = 64 * 2**10
"""What a pipe of Linux holds: so much is written to an idle worker without a wait."""


class WorkerEndedError(Exception):
    """A worker has ended instead of answering. ``returncode``: negative, the signal that ended it."""

    def __init__(self, returncode: int) -> None:
        super().__init__(f"a worker has ended with code {returncode}")
        self.returncode = returncode


class WorkerProcesses:
    """``ask`` may be called by several threads; each that finds no process idle starts one.

    Args:
        command: what Python is to run, as its own command line has it.
        settings: makes the first line of each, when it starts.
        variables: of the environment, beside this process's own.
    """

    def __init__(
        self, command: Sequence[str], settings: Callable[[], object], variables: Mapping[str, str] | None = None
    ) -> None:
        # -P: no module of the working folder, or of a script's, is taken for one of Octavo's or Python's.
        self._command = [sys.executable, "-P", *command]
        self._settings = settings
        self._variables = dict(variables or {})
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._is_closed = False

    def ask(self, question: object) -> Any:
        """The answer, which the worker's own alarm bounds the wait for.

        Raises:
            TypeError, ValueError, RecursionError: the question is not plain JSON.
            WorkerEndedError: a limit has struck.
        """
        line = _line(question)
        worker = self._idle_one() or self._start()
        try:
            _send(worker, line)
            answer = cast("IO[bytes]", worker.stdout).readline()
        except BaseException:  # also an interrupt: the answer is still in the pipe, so this one cannot be used again
            _end(worker)
            raise
        if not answer.endswith(b"\n"):
            raise WorkerEndedError(_reaped(worker))
        self._give_back(worker)
        return json.loads(answer)

    async def ask_from_loop(self, question: object) -> Any:
        """As ``ask``, with no thread that waits, unless a worker has to be started or a pipe may not hold the question.
        Whoever is cancelled leaves the worker to the end of its answer.

        Raises:
            TypeError, ValueError, RecursionError: the question is not plain JSON.
            WorkerEndedError: a limit has struck.
        """
        line = _line(question)
        worker = self._idle_one() if len(line) <= _PIPE_BYTES else None
        if worker is None:
            return await asyncio.to_thread(self.ask, question)
        answer = await self._exchange(worker, line)
        if not answer.endswith(b"\n"):
            raise WorkerEndedError(_reaped(worker))
        return json.loads(answer)

    def _exchange(self, worker: "subprocess.Popen[bytes]", line: bytes) -> "asyncio.Future[bytes]":
        """The line that the worker answers; cut off where it has ended instead."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        stdout = cast("IO[bytes]", worker.stdout).fileno()
        pieces: list[bytes] = []

        def read() -> None:
            piece = os.read(stdout, _PIPE_BYTES)
            pieces.append(piece)
            if piece and not piece.endswith(b"\n"):
                return
            loop.remove_reader(stdout)
            os.set_blocking(stdout, True)  # uvloop takes that away, and ``ask`` waits by reading
            if piece:
                self._give_back(worker)
            if not answer.cancelled():
                answer.set_result(b"".join(pieces))
            elif not piece:
                _reaped(worker)

        loop.add_reader(stdout, read)
        _send(worker, line)
        return answer

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for worker in idle:
            _end(worker)

    def _idle_one(self) -> "subprocess.Popen[bytes] | None":
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.poll() is None:
                    return worker
                _end(worker)  # the system has ended it, for nothing that was asked of it now
        return None

    def _start(self) -> "subprocess.Popen[bytes]":
        worker = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | self._variables,
            # A session of its own: an interrupt from the keyboard is for the server; a worker ends when its input does.
            start_new_session=True,
        )
        _send(worker, _line(self._settings()))
        return worker

    def _give_back(self, worker: "subprocess.Popen[bytes]") -> None:
        with self._lock:
            if len(self._idle) < MAX_IDLE and not self._is_closed:
                self._idle.append(worker)
                return
        _end(worker)


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _send(worker: "subprocess.Popen[bytes]", line: bytes) -> None:
    stdin = cast("IO[bytes]", worker.stdin)
    try:
        stdin.write(line)
        stdin.flush()
    except BrokenPipeError:
        pass  # it has ended: the missing answer says so


def _reaped(worker: "subprocess.Popen[bytes]") -> int:
    """With what code one ended that has closed its output."""
    returncode = worker.wait()
    _end(worker)
    return returncode


def _end(worker: "subprocess.Popen[bytes]") -> None:
    worker.kill()
    try:
        worker.communicate()  # closes the pipes and waits
    except BrokenPipeError:
        worker.wait()
