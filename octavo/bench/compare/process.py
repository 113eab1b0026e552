"""An engine in a process of its own, spoken to in JSON lines (``drivers/driver_main.py``)."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from octavo.core.errors import ConfigurationError

DRIVERS = Path(__file__).parent / "drivers"
MAIN = DRIVERS / "driver_main.py"

_OCTAVOS_OWN = ("OCTAVO_API_KEY", "OCTAVO_KV_SANITIZER", "OCTAVO_THREADS", "OMP_NUM_THREADS")
"""Variables that would change what is measured; the number of threads is said in another way."""


class EngineProcess:
    """An engine and its driver. To be closed, or used with ``with``.

    Args:
        name: what messages call it.
        python: interpreter of its environment.
        driver: "module:Class", the module's file in ``folder``.
        folder: of the driver modules.
    """

    def __init__(self, name: str, python: Path, driver: str, folder: Path = DRIVERS) -> None:
        self.name = name
        environment = {key: value for key, value in os.environ.items() if key not in _OCTAVOS_OWN}
        search = [str(folder)]
        if python == Path(sys.executable) and "PYTHONPATH" in environment:  # meant for this interpreter, no other
            search.append(environment["PYTHONPATH"])
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        self._process = subprocess.Popen(
            [python, "-u", MAIN, driver],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment | {"PYTHONPATH": os.pathsep.join(search)},
            start_new_session=True,  # Ctrl-C is for the bench alone
        )

    def ask(self, command: str, **arguments: object) -> dict[str, Any]:
        """The answer to one request.

        Raises:
            ConfigurationError: the engine refused it or ended, in its own words.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({command: arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            raise ConfigurationError(
                f"{self.name} ended with code {code} when asked to {command}: {self._last_words()}"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ConfigurationError(f"{self.name} could not {command}: {answer['error']}")
        return answer

    def run(self, prompts: Sequence[Sequence[int]], output_len: int) -> float:
        """Seconds that the engine took.

        Raises:
            ConfigurationError: it failed, or gave too many or too few tokens.
        """
        answer = self.ask("run", prompts=prompts, output_len=output_len)
        if answer["lengths"] != [output_len] * len(prompts):
            raise ConfigurationError(
                f"{self.name} answered {len(prompts)} prompts with {sorted(set(answer['lengths']))} tokens, "
                f"not {output_len} each"
            )
        seconds: float = answer["seconds"]
        return seconds

    def close(self) -> None:
        """Ends the process; may be repeated."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # with whatever it started
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"
