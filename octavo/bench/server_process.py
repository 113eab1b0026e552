"""``octavo serve`` in a process of its own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryFile
from urllib.error import URLError
from urllib.request import urlopen

from octavo.core.errors import ConfigurationError

POLL_SECONDS = 0.02
READY_TIMEOUT = 300.0


@contextmanager
def running_server(arguments: Sequence[str]) -> Iterator[int]:
    """A server with these arguments that is ready, and its port; ended after the ``with`` block.

    Raises:
        ConfigurationError: it ended, or was not ready in time; with its last words.
    """
    port = _free_port()
    command = [sys.executable, "-m", "octavo", "serve", *arguments, "--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_API_KEY")}
    start = time.perf_counter()
    with TemporaryFile() as output:

        def last_words() -> str:
            output.seek(0)
            return " ".join(output.read().decode(errors="replace").splitlines()[-1:])

        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            while not _is_ready(port):
                if server.poll() is not None:
                    raise ConfigurationError(f"octavo serve ended with code {server.returncode}: {last_words()}")
                if time.perf_counter() - start > READY_TIMEOUT:
                    raise ConfigurationError(f"octavo serve was not ready after {READY_TIMEOUT:g} s: {last_words()}")
                time.sleep(POLL_SECONDS)
            yield port
        finally:
            server.terminate()
            server.wait()


def _is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, TimeoutError, ConnectionError):
        return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
