"""B56: an engine that has ended is started again, as often as it may be; liveness beside readiness; nothing is left
behind, whoever is killed."""

import os
import signal
import time
from pathlib import Path

import httpx
import psutil
import pytest

from octavo.server.restarts import RestartBudget
from tests.server.test_disconnect import sent
from tests.server.test_lifecycle import Request
from tests.server.test_validation import check_error
from tests.support.fake_server import ServerProcess, running_server
from tests.support.waiting import PATIENCE, wait_until


def statuses(server: ServerProcess) -> tuple[int, int]:
    """Of readiness and of liveness."""
    with server.client() as client:
        return client.get("/health").status_code, client.get("/health?probe=live").status_code


def engines(server: ServerProcess) -> list[psutil.Process]:
    """Those that run, or are about to."""
    children = psutil.Process(server.process.pid).children()
    return [each for each in children if each.is_running() and "spawn_main" in " ".join(each.cmdline())]


def test_how_often() -> None:
    now = 0.0
    budget = RestartBudget(2, lambda: now)
    assert [budget.take() for _ in range(3)] == [True, True, False]
    now = 599.0
    assert not budget.take()
    now = 601.0
    assert [budget.take() for _ in range(3)] == [True, True, False]
    assert not RestartBudget(0, lambda: now).take()


def test_an_engine_that_ends_is_started_again(tmp_path: Path) -> None:
    options = {"step_seconds": 0.05, "start_seconds": 1.0}
    with running_server(options, temp_folder=tmp_path, restart_engine=1) as server:
        stream = Request(server.wait_ready(), stream=True).wait_for_status()
        whole = Request(server)
        wait_until(lambda: server.metric("vllm:num_requests_running") == 2)
        first = psutil.Process(server.engine_pid)
        first.kill()
        wait_until(lambda: statuses(server) == (503, 200))
        assert server.metric("vllm:num_requests_running") == 0
        assert server.metric("octavo:kv_blocks_total") == 0
        with server.client() as client:
            refused = client.post("/v1/completions", json={"prompt": "x"})
        assert "another one is being started" in check_error(refused, 503)["message"]
        assert refused.headers["Retry-After"]
        for request in (stream, whole):
            request.join(5.0)
            assert "engine process has ended" in request.text
            assert "[DONE]" not in request.text
        assert (stream.status, whole.status) == (200, 503)
        assert server.metric("vllm:request_success_total", finished_reason="error") == 2
        wait_until(lambda: statuses(server) == (200, 200))
        assert not first.is_running()
        with server.client() as client:
            answer = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 5})
            assert answer.json()["choices"][0]["text"] == "alpha"
        assert server.metric("octavo:engine_restarts_total") == 1
        assert server.metric("octavo:queued_requests") == 0
        assert list(tmp_path.iterdir()) == []
        os.kill(server.engine_pid, signal.SIGKILL)
        assert server.wait_exit() == 1
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_is_killed_while_it_starts_again() -> None:
    with running_server({"start_seconds": 1.0}, restart_engine=2) as server:
        os.kill(server.wait_ready().engine_pid, signal.SIGKILL)
        wait_until(lambda: "another one is started" in server.log)
        wait_until(lambda: engines(server) != [])
        os.kill(server.engine_pid, signal.SIGKILL)
        wait_until(lambda: server.log.count("another one is started") == 2)
        wait_until(lambda: statuses(server) == (200, 200))


def test_sigterm_while_the_engine_starts_again() -> None:
    with running_server({"start_seconds": 2.0}, restart_engine=1) as server:
        os.kill(server.wait_ready().engine_pid, signal.SIGKILL)
        wait_until(lambda: "another one is started" in server.log)
        children = psutil.Process(server.process.pid).children(recursive=True)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert psutil.wait_procs(children, timeout=PATIENCE)[1] == []


def test_liveness_while_loading_and_draining() -> None:
    with running_server({"start_seconds": 1.0, "step_seconds": 0.05}) as server:
        assert server.port
        assert statuses(server) == (503, 200)
        request = Request(server.wait_ready(), max_tokens=60)
        wait_until(lambda: server.metric("vllm:num_requests_running") == 1)
        assert statuses(server) == (200, 200)
        with server.client() as client:
            assert check_error(client.get("/health?probe=soon"))["param"] == "probe"
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "Shutting down" in server.log)
        assert statuses(server) == (503, 200)
        assert server.wait_exit() == 0
        request.join()
        assert request.status == 200


def test_a_stopped_engine_is_not_alive_and_not_waited_for() -> None:
    """It cannot take its cache to disk, so the end does not wait a minute for it."""
    with running_server() as server:
        engine = psutil.Process(server.wait_ready().engine_pid)
        engine.suspend()
        wait_until(lambda: statuses(server) == (503, 503))
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert time.monotonic() - start < 40.0
        engine.wait(5.0)


@pytest.mark.parametrize("state", ["loading", "serving"])
def test_a_killed_server_leaves_nothing_behind(tmp_path: Path, state: str) -> None:
    options = {"start_seconds": 3.0 if state == "loading" else 0.0, "step_seconds": 0.05}
    shared = set(Path("/dev/shm").iterdir())
    with running_server(options, temp_folder=tmp_path) as server:
        assert server.port
        if state == "loading":
            wait_until(lambda: list(tmp_path.iterdir()) == [] and engines(server) != [])
        else:
            server.wait_ready()
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert len(children) > 1
        with sent(server, {"prompt": "x", "max_tokens": 400, "stream": True}):
            server.process.kill()
            assert psutil.wait_procs(children, timeout=PATIENCE)[1] == []
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.url)
    assert list(tmp_path.iterdir()) == []
    assert set(Path("/dev/shm").iterdir()) <= shared
