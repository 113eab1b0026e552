"""B56, D22, D24: loading, health, death, shutdown."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.fake_server import ServerProcess, running_server
from tests.support.waiting import PATIENCE, wait_until


class Request(threading.Thread):
    """A completion sent from a thread; ``lines`` of the answer as they come."""

    def __init__(self, server: ServerProcess, **fields: Any) -> None:
        super().__init__()
        self._server = server
        self._fields = {"prompt": "x", "max_tokens": 400} | fields
        self.status = 0
        self.lines: list[str] = []
        self.start()

    def run(self) -> None:
        with (
            self._server.client() as client,
            client.stream("POST", "/v1/completions", json=self._fields) as response,
        ):
            self.status = response.status_code
            self.lines.extend(response.iter_lines())

    def wait_for_status(self) -> "Request":
        wait_until(lambda: self.status)
        return self

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def test_loading_then_ready_then_sigterm(tmp_path: Path) -> None:
    options = {"start_seconds": 1.0, "step_seconds": 0.05, "max_num_seqs": 2}
    with running_server(options, temp_folder=tmp_path) as server:
        with server.client() as client:
            for answer in (client.get("/health"), client.post("/v1/completions", json={"prompt": "x"})):
                assert answer.status_code == 503
                assert answer.json()["error"]["message"] == "The model is still loading."
                assert "Retry-After" in answer.headers
            assert client.get("/version").status_code == 200
            assert client.get("/metrics").status_code == 200
        server.wait_ready()
        assert list(tmp_path.iterdir()) == []  # the socket files are gone as soon as both sides are connected
        children = psutil.Process(server.process.pid).children(recursive=True)
        with server.client() as client:
            assert client.get("/health").status_code == 200
            assert client.get("/ping").status_code == 200

        running = [Request(server, stream=True, max_tokens=100).wait_for_status() for _ in range(2)]
        queued = [Request(server, stream=streams, max_tokens=50) for streams in (True, False)]
        while server.metric("vllm:num_requests_waiting") < 2:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        for request in queued:
            request.join(5.0)
            assert request.status == 503
            assert "shutting down" in request.text
        with server.client() as client:
            assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 503
            assert client.get("/health").status_code == 503
        for request in running:
            request.join(20.0)
            assert "data: [DONE]" in request.lines
        assert server.wait_exit() == 0
        _, alive = psutil.wait_procs(children, timeout=PATIENCE)
        assert alive == []
    assert list(tmp_path.iterdir()) == []


def test_sigterm_before_the_engine_listens(tmp_path: Path) -> None:
    """Its process is still on its way up and hears of nothing: it is not waited for."""
    with running_server({"start_seconds": 30.0}, temp_folder=tmp_path) as server:
        assert server.port
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0
    assert list(tmp_path.iterdir()) == []


def test_second_signal() -> None:
    with running_server({"step_seconds": 0.05}) as server:
        request = Request(server.wait_ready(), stream=True).wait_for_status()
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_exit(5.0) == 128 + signal.SIGTERM
        request.join()
        assert "[DONE]" not in request.text


@pytest.mark.parametrize("how", ["kill", "crash"])
def test_engine_death(how: str) -> None:
    """Open streams get an error event and no [DONE]; the others a 503; the server ends with a code that is not 0."""
    with running_server({"step_seconds": 0.05, "max_num_seqs": 5}) as server:
        server.wait_ready()
        streams = [Request(server, stream=True).wait_for_status() for _ in range(3)]
        whole = Request(server)
        while server.metric("vllm:num_requests_running") < 4:
            time.sleep(0.01)
        if how == "kill":
            os.kill(server.engine_pid, signal.SIGKILL)
        else:
            streams.append(Request(server, prompt="!crash"))
        start = time.monotonic()
        with server.client() as client:
            while True:
                try:
                    if client.get("/health").status_code != 200:
                        break
                except httpx.TransportError:
                    break
                assert time.monotonic() - start < 5.0
        assert server.wait_exit(5.0) == 1
        for request in [*streams, whole]:
            request.join(2.0)
        for request in streams[:3]:
            assert '"error"' in request.lines[-2]
            assert "engine process has ended" in request.text
            assert "[DONE]" not in request.text
        assert whole.status == 503
        last = server.lines[-1]
        assert last.startswith("Error: The engine process ended with code")
        if how == "crash":
            assert "the step was told to crash" in server.log


def test_stopped_engine_and_killed_parent() -> None:
    """B56 (ii): an engine that does not answer is not healthy; without its parent it ends."""
    with running_server() as server, server.wait_ready().client() as client:
        engine = psutil.Process(server.engine_pid)
        assert client.get("/health").status_code == 200
        engine.suspend()
        time.sleep(4.5)
        assert client.get("/health").status_code == 503
        engine.resume()
        assert client.get("/health").status_code == 200
        server.process.kill()
        engine.wait(5.0)


def test_port_in_use(server: ServerProcess) -> None:
    with running_server(port=server.port) as second:
        assert second.wait_exit() == 1
    where = f"127.0.0.1 port {server.port}"
    expected = f"Error: Cannot listen on {where}: Address already in use. Choose another with --host or --port."
    assert second.lines == [expected]


def test_engine_that_cannot_start() -> None:
    with running_server({"start_error": "The file nowhere.gguf does not exist."}) as server:
        assert server.wait_exit() == 1
    assert server.lines[-1] == "Error: The file nowhere.gguf does not exist."
    assert "Traceback" not in server.log


def test_bounded_queue_and_grace_time() -> None:
    options = {"max_num_queued_reqs": 2, "shutdown_timeout": 0.5}
    with running_server({"step_seconds": 0.05, "max_num_seqs": 1}, **options) as server:
        running = Request(server.wait_ready(), stream=True).wait_for_status()
        queued = [Request(server, max_tokens=1) for _ in range(2)]
        while server.metric("vllm:num_requests_waiting") < 2:
            time.sleep(0.01)
        with server.client() as client:
            answer = client.post("/v1/completions", json={"prompt": "x"})
        assert answer.status_code == 429
        assert answer.headers["Retry-After"] == "1"
        assert answer.json()["error"]["code"] == "queue_full"
        assert server.metric("octavo:requests_rejected_total", reason="queue_full") == 1
        server.process.send_signal(signal.SIGINT)
        assert server.wait_exit(5.0) == 0
    for request in [running, *queued]:
        request.join()
    assert [request.status for request in queued] == [503, 503]
    assert "before this request was finished" in running.text
    assert "[DONE]" not in running.text


def test_what_is_computed_is_not_queued() -> None:
    """Its first step takes long, and nothing has been said of it: it takes no place in the queue, and SIGTERM lets it
    finish (D22)."""
    with running_server({"step_seconds": 3.0, "max_num_seqs": 1}, max_num_queued_reqs=1) as server:
        running = Request(server.wait_ready(), max_tokens=1)
        with server.client() as client:
            while client.get("/load").json()["server_load"] < 1:
                time.sleep(0.01)
        time.sleep(0.5)
        queued = Request(server, max_tokens=1)
        with server.client() as client:
            while client.get("/load").json()["server_load"] < 2:
                assert queued.is_alive(), queued.text
            assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 429
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0
    for request in (running, queued):
        request.join(5.0)
    assert (running.status, queued.status) == (200, 503)
