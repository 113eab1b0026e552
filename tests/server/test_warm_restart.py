"""A server with a disk tier begins warm after a restart: after SIGTERM with all that it had, after kill -9 with what it
had written by then, and never with wrong tokens."""

import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.support.fake_engine import MODEL
from tests.support.fake_server import ServerProcess, running_real_server, running_server
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.parity import random_ids

pytestmark = pytest.mark.slow

PROMPT = random_ids(50, RAND_VOCAB, seed=1)
OTHERS = [random_ids(60, RAND_VOCAB, seed=seed) for seed in range(2, 6)]


class Answer(NamedTuple):
    text: str
    logprobs: dict[str, Any]


@pytest.fixture(scope="module")
def rand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand_model(tmp_path_factory.mktemp("rand"))


@contextmanager
def _serving(model: Path, folder: Path) -> Iterator[ServerProcess]:
    flags = {
        "--num-blocks": 12,
        "--block-size": 8,
        "--max-model-len": 80,
        "--threads": 1,
        "--prefix-cache-dir": folder,
        "--prefix-cache-disk-space": 0.01,
    }
    with running_real_server(model, *(str(part) for flag in flags.items() for part in flag)) as server:
        yield server.wait_ready()


def _ask(server: ServerProcess, prompt: list[int] = PROMPT) -> tuple[Answer, int]:
    """The answer, and how much of the prompt was cached."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 3, "ignore_eos": True}
    with server.client() as client:
        answer = client.post("/v1/completions", json=body).raise_for_status().json()
    (choice,) = answer["choices"]
    return Answer(choice["text"], choice["logprobs"]), answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def _ask_until_killed(server: ServerProcess, seed: int, answered: threading.Event) -> None:
    """Ask new things until there is no server any more."""
    for count in itertools.count():
        try:
            _ask(server, random_ids(60, RAND_VOCAB, seed=1000 * seed + count))
        except httpx.HTTPError:
            return
        answered.set()


def test_after_sigterm_the_first_request_hits(rand: Path, tmp_path: Path) -> None:
    with _serving(rand, tmp_path) as server:
        expected, num_cached = _ask(server)
        assert num_cached == 0
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert "The prefix cache has been taken to disk" in server.log
    with _serving(rand, tmp_path) as server:
        assert _ask(server) == (expected, 48)


def test_after_kill_what_was_evicted_is_there(rand: Path, tmp_path: Path) -> None:
    """The engine is killed while it evicts and writes."""
    with _serving(rand, tmp_path) as server:
        expected, _ = _ask(server)
        answers = [_ask(server, prompt)[0] for prompt in OTHERS]
        with ThreadPoolExecutor() as clients:
            answered = threading.Event()
            for seed in range(100, 103):
                clients.submit(_ask_until_killed, server, seed, answered)
            was_answered = answered.wait(60.0)
            os.kill(server.engine_pid, signal.SIGKILL)
            server.process.kill()
            assert was_answered
        server.wait_exit()
    with _serving(rand, tmp_path) as server:
        assert _ask(server) == (expected, 48)
        assert [_ask(server, prompt)[0] for prompt in OTHERS] == answers


def test_the_server_waits_for_what_the_engine_does_at_its_end() -> None:
    with running_server({"close_seconds": 4.0}) as server:
        server.wait_ready().process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        assert server.wait_exit() == 0
        assert time.monotonic() - start > 4.0


def test_a_second_signal_cuts_it_short() -> None:
    with running_server({"close_seconds": 60.0}) as server:
        server.wait_ready().process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(3.0)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 128 + signal.SIGTERM
