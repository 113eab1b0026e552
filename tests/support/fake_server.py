"""A server process as tests start, watch and end it: over the fake engine, or the real one."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.support.fake_engine import MODEL
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


def engine_pid_of(process: "subprocess.Popen[str]") -> int:
    """Of the engine that this process has started."""
    children = psutil.Process(process.pid).children()
    # Beside the engine there is the resource tracker of multiprocessing.
    return next(child.pid for child in children if "spawn_main" in " ".join(child.cmdline()))


@contextmanager
def engine_stopped(process: "subprocess.Popen[str]") -> Iterator[None]:
    """It computes nothing meanwhile; what is sent to it waits."""
    pid = engine_pid_of(process)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class ServerProcess:
    """One running server: its address, its processes, its log so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    @property
    def url(self) -> str:
        """Known as soon as the port is bound."""
        return self._wait_for(r"listening at (https?://[^; ]+)")

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def wait_ready(self, seconds: float = PATIENCE) -> "ServerProcess":
        self._wait_for(r"serves (\S+) at", seconds)
        return self

    @property
    def engine_pid(self) -> int:
        return engine_pid_of(self.process)

    def engine_stopped(self) -> AbstractContextManager[None]:
        """See the function."""
        return engine_stopped(self.process)

    @property
    def num_open(self) -> int:
        """Requests that the door knows of."""
        with self.client() as client:
            return client.get("/load").json()["server_load"]

    def client(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE)

    def metric(self, name: str, **labels: str) -> float:
        """The value of one series; ``labels`` are those besides model_name."""
        with self.client() as client:
            page = client.get("/metrics").text
        samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
        (value,) = [
            each.value for each in samples if each.name == name and each.labels == labels | {"model_name": MODEL}
        ]
        return value

    def wait_exit(self, seconds: float = PATIENCE) -> int:
        code = self.process.wait(seconds)
        self._reader.join(2.0)
        return code

    def _wait_for(self, pattern: str, seconds: float = PATIENCE) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = re.search(pattern, self.log)
            if found:
                return found.group(1)
            if self.process.poll() is not None:
                self._reader.join(2.0)
                break
            time.sleep(0.02)
        raise AssertionError(f"the server's log does not hold {pattern!r}:\n{self.log}")


@contextmanager
def running_server(
    engine: dict[str, Any] | None = None, temp_folder: Path | None = None, **settings: Any
) -> Iterator[ServerProcess]:
    """A server on a free port, ended at exit. ``engine``: FakeEngineOptions; ``settings``: ServerSettings;
    ``temp_folder``: where it and its engine put temporary files, the system's place if None.
    """
    options = json.dumps({"engine": engine or {}, "settings": {"port": 0} | settings})
    with _running(["tests.support.fake_server_main", options], temp_folder) as server:
        yield server


@contextmanager
def running_real_server(model: Path, *flags: str) -> Iterator[ServerProcess]:
    """``octavo serve`` as users start it, on a free port and under the fake one's model name."""
    with _running(["octavo", "serve", str(model), "--port", "0", "--served-model-name", MODEL, *flags]) as server:
        yield server


@contextmanager
def _running(module: list[str], temp_folder: Path | None = None) -> Iterator[ServerProcess]:
    """``python -m`` a module with its arguments, ended at exit."""
    process = subprocess.Popen(
        [sys.executable, "-m", *module],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | ({} if temp_folder is None else {"TMPDIR": str(temp_folder)}),
    )
    server = ServerProcess(process)
    try:
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        server._reader.join(2.0)
        assert process.stderr is not None
        process.stderr.close()
