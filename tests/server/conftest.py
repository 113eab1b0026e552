"""Servers over the fake engine, shared by the tests of this folder where a test does not end its server."""

from collections.abc import Iterator

import httpx
import pytest

from tests.support.fake_server import ServerProcess, running_server


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """Fast: a token takes no time."""
    with running_server() as running:
        yield running.wait_ready()


@pytest.fixture(scope="session")
def slow_server() -> Iterator[ServerProcess]:
    """Four places, 20 tokens a second each."""
    with running_server({"step_seconds": 0.05, "max_model_len": 8192}) as running:
        yield running.wait_ready()


@pytest.fixture(scope="session")
def thinking_server() -> Iterator[ServerProcess]:
    """Answers are read for thinking and for calls, as of a Qwen model."""
    with running_server({"max_model_len": 4096}, tool_call_parser="hermes", reasoning_parser="qwen3") as running:
        yield running.wait_ready()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.client() as opened:
        yield opened
