"""The server's process, seen from outside: its port, the time of its CPU."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any

from octavo.bench.front.server import LISTENING, READY
from octavo.core.errors import ConfigurationError

START_SECONDS = 60.0
POLL_SECONDS = 0.02
_PORT = re.compile(rf"{LISTENING} \S+:(\d+);")


@dataclass(frozen=True, slots=True)
class Server:
    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """Of all its threads, but not of the engine's process."""
        return time.clock_gettime((~self.pid << 3) | 2)  # the clock that clock_getcpuclockid names


@contextmanager
def running(options: Mapping[str, Any]) -> Iterator[Server]:
    """A server (see server.py) that is ready, ended after the ``with`` block.

    Raises:
        ConfigurationError: it ended, or was not ready in time; with its last words.
    """
    command = [sys.executable, "-m", "octavo.bench.front.server", json.dumps(options)]
    with TemporaryFile() as output:
        process = subprocess.Popen(command, stderr=output)
        try:
            deadline, said = time.monotonic() + START_SECONDS, ""
            while READY not in said:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise ConfigurationError(f"the server did not start: {said[-500:]}")
                time.sleep(POLL_SECONDS)
                output.seek(0)
                said = output.read().decode(errors="replace")
            found = _PORT.search(said)
            assert found is not None, "it says where it listens before it is ready"
            yield Server(int(found[1]), process.pid)
        finally:
            process.terminate()
            process.wait()
