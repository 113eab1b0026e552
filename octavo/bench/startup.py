"""``octavo bench startup``: what ``import octavo`` costs, and how long a server takes until it answers."""

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import click

from octavo.bench.report import report
from octavo.bench.server_process import running_server
from octavo.cli.options import model_option
from octavo.cli.table import json_option

COLUMNS = {"what": "what", "seconds": "median s", "best_seconds": "best s", "loads_torch": "loads torch"}
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
    start = time.perf_counter()
    with running_server([model]):
        return time.perf_counter() - start


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
