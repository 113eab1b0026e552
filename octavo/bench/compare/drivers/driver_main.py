"""Runs one engine for ``octavo bench compare``: ``python driver_main.py MODULE:CLASS``.

Requests and answers are JSON lines. Requests come on standard input, each is answered by one line on what was standard
output at the start; whatever the engine prints goes to standard error. Any answer may be ``{"error": "one sentence"}``.

    {"load": {"model": path, "threads": 2, "max_sequences": 32, "max_tokens": 384}}   -> {"version": text}
    {"run": {"prompts": [[ids]], "output_len": 128}}        -> {"seconds": s, "lengths": [128]}

``max_tokens``: of one sequence, prompt and output. A run is greedy, ignores EOS, and finds none of its prompts cached;
``lengths``: how many new tokens each prompt got.
"""

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol, TextIO

PR_SET_PDEATHSIG = 1


class Engine(Protocol):
    """What a driver module has. An engine that takes the time itself also has ``seconds``, of the last run."""

    def load(self, model: str, threads: int, max_sequences: int, max_tokens: int) -> str:
        """Makes the engine ready; returns its name and version."""
        ...

    def run(self, prompts: list[list[int]], output_len: int) -> list[int]:
        """Draws ``output_len`` ids after each prompt, all prompts there from the start; returns how many it drew."""
        ...


def answer(engine: Any, request: dict[str, Any]) -> dict[str, Any]:
    """What ``engine`` says to one request."""
    ((command, arguments),) = request.items()
    if command == "load":
        return {"version": engine.load(**arguments)}
    if command == "run":
        start = time.perf_counter()
        lengths = engine.run(**arguments)
        seconds = time.perf_counter() - start
        return {"seconds": getattr(engine, "seconds", seconds), "lengths": lengths}
    raise ValueError(f"no such command: {command}")


def serve(engine: Engine, requests: TextIO, answers: TextIO) -> None:
    """Answers requests until there are no more."""
    for line in requests:
        try:
            said = answer(engine, json.loads(line))
        except Exception as error:  # noqa: BLE001  # whatever an engine raises is told, and ends nothing
            said = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
        print(json.dumps(said), file=answers, flush=True)


@contextlib.contextmanager
def answer_stream() -> Iterator[TextIO]:
    """What was standard output; from now on, prints of this process and its libraries go to standard error."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        yield answers


def end_with_parent() -> None:
    """An engine must not outlive a bench that was killed (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent()
    with answer_stream() as stream:
        module_name, _, class_name = sys.argv[1].partition(":")
        serve(getattr(importlib.import_module(module_name), class_name)(), sys.stdin, stream)
