"""``octavo bench startup``: what ``import octavo`` costs, and how long a server takes until it answers."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile
from urllib.error import URLError
from urllib.request import urlopen

import click

from octavo.bench.report import report
from octavo.cli.options import model_option
from octavo.cli.table import json_option
from octavo.core.errors import ConfigurationError

COLUMNS = {"what": "what", "seconds": "median s", "best_seconds": "best s", "loads_torch": "loads torch"}
POLL_SECONDS = 0.02
READY_TIMEOUT = 300.0
_IMPORT = (
    "import sys, time; start = time.perf_counter(); import octavo; seconds = time.perf_counter() - start; "
    "import json; print(json.dumps([seconds, 'torch' in sys.modules]))"
)


def time_import() -> tuple[float, bool]:
    """Seconds of ``import octavo`` in a fresh interpreter, and whether torch came with it."""
    done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True)
    seconds, loads_torch = json.loads(done.stdout)
    return seconds, loads_torch


def time_server(model: str) -> float:
    """Seconds from the start of ``octavo serve`` until /health says that it serves.

    Raises:
        ConfigurationError: the server ended, or was not ready in time; with its last words.
    """
    port = _free_port()
    start = time.perf_counter()
    with _server(model, port) as (server, last_words):
        while not _is_ready(port):
            if server.poll() is not None:
                raise ConfigurationError(f"octavo serve ended with code {server.returncode}: {last_words()}")
            if time.perf_counter() - start > READY_TIMEOUT:
                raise ConfigurationError(f"octavo serve was not ready after {READY_TIMEOUT:g} s: {last_words()}")
            time.sleep(POLL_SECONDS)
        return time.perf_counter() - start


@contextmanager
def _server(model: str, port: int) -> Iterator[tuple["subprocess.Popen[bytes]", Callable[[], str]]]:
    """``octavo serve`` in a process of its own, ended after the ``with`` block, and its last line of output so far."""
    command = [sys.executable, "-m", "octavo", "serve", model, "--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_API_KEY")}
    with TemporaryFile() as output:

        def last_words() -> str:
            output.seek(0)
            return " ".join(output.read().decode(errors="replace").splitlines()[-1:])

        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            yield server, last_words
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


def _row(what: str, seconds: list[float], loads_torch: bool | None = None) -> dict[str, object]:
    row: dict[str, object] = {"what": what, "seconds": median(seconds), "best_seconds": min(seconds)}
    if loads_torch is not None:
        row["loads_torch"] = "yes" if loads_torch else "no"
    return row | {"seconds_of_repeats": seconds}


@click.command("startup")
@model_option
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Medians are shown.")
@json_option
def startup(model: str | None, repeats: int, json_path: Path | None) -> None:
    """Time `import octavo` in a fresh process, and `octavo serve` until /health answers 200."""
    model = model or "smollm2-135m"
    time_import()  # the first one may have to compile modules
    imports = [time_import() for _ in range(repeats)]
    servers = [time_server(model) for _ in range(repeats)]
    rows = [
        _row("import octavo", [seconds for seconds, _ in imports], any(torch for _, torch in imports)),
        _row(f"octavo serve {model}, until ready", servers),
    ]
    report("startup", rows, COLUMNS, json_path)
