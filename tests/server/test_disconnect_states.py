"""B54 on a real engine: clients leave swapped-out, half computed and waiting requests, 200 times over."""

import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.server.test_disconnect import close, sent
from tests.support.fake_server import ServerProcess, running_real_server
from tests.support.models import rand_model
from tests.support.waiting import wait_until

ENDLESS = {"prompt": [5, 6, 7], "max_tokens": 1900, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module", params=["swap", "recompute"])
def busy_server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """A pool that two endless requests fill, and prompts that take many steps of many layers."""
    model: Path = rand_model(tmp_path_factory.mktemp("rand"), max_position_embeddings=2048, num_hidden_layers=24)
    flags = ("--num-blocks", "160", "--max-model-len", "2048", "--max-num-seqs", "4", "--max-num-batched-tokens", "8")
    flags += ("--preemption-mode", request.param, "--swap-space", "0.1", "--threads", "1", "--target-itl-ms", "1000")
    with running_real_server(model, *flags) as running:
        yield running.wait_ready()


def figures(server: ServerProcess) -> dict[str, float]:
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "octavo:queued_requests")
    found = {name: server.metric(name) for name in names}
    found["swapped"] = server.metric("octavo:swapped_blocks")
    found["active"] = server.metric("octavo:kv_blocks", state="active")
    return found | {"open": server.num_open}


def is_quiet(server: ServerProcess) -> bool:
    """No request is left, and no block of one."""
    return not any(figures(server).values())


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
def test_preempted_requests_are_aborted(busy_server: ServerProcess, reset: bool) -> None:
    preempted = busy_server.metric("vllm:num_preemptions_total")
    aborted = busy_server.metric("vllm:request_success_total", finished_reason="abort")
    with ExitStack() as stack:
        streams = [{"stream": True}, {}, {"stream": True}, {}]
        clients = [
            stack.enter_context(sent(busy_server, ENDLESS | each | {"prompt": [index] * 3}))
            for index, each in enumerate(streams, 5)
        ]
        wait_until(lambda: busy_server.metric("vllm:num_preemptions_total") > preempted)
        for client in clients:
            close(client, reset)
        wait_until(lambda: is_quiet(busy_server))
    ended = busy_server.metric("vllm:request_success_total", finished_reason="abort") - aborted
    assert ended == 4


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("more", [{"stream": True}, {"n": 2}], ids=str)
def test_half_computed_prompts_are_aborted(busy_server: ServerProcess, more: dict[str, Any], reset: bool) -> None:
    generated = busy_server.metric("vllm:generation_tokens_total")
    prompt = random.Random(f"{more}{reset}").choices(range(5, 400), k=2000)
    with sent(busy_server, {"prompt": prompt, "max_tokens": 5} | more) as client:
        wait_until(lambda: busy_server.metric("octavo:kv_blocks", state="active") > 3)
        # The engine stands still until the client is missed, however fast it computes prompts.
        with busy_server.engine_stopped():
            close(client, reset)
            wait_until(lambda: busy_server.num_open == 0)
        wait_until(lambda: is_quiet(busy_server))
    assert busy_server.metric("vllm:generation_tokens_total") == generated


def test_200_clients_that_leave(busy_server: ServerProcess) -> None:
    """In whatever state their requests are by then: several are open at a time, so some run, wait or are preempted."""
    draw = random.Random(0)
    kinds: list[dict[str, Any]] = [{"stream": True}, {}, {"n": 3}, {"n": 2, "stream": True}, {"prompt": [7] * 600}]
    process = psutil.Process(busy_server.process.pid)
    wait_until(lambda: is_quiet(busy_server))
    before, fds = None, process.num_fds()
    for cycle in range(200):
        with ExitStack() as stack:
            kind = draw.choice(kinds)
            clients: list[socket.socket] = [
                stack.enter_context(sent(busy_server, ENDLESS | kind | {"user": str(cycle)}))
                for _ in range(draw.randint(1, 3))
            ]
            time.sleep(draw.random() * 0.08)
            draw.shuffle(clients)
            for client in clients:
                close(client, draw.random() < 0.5)
        if cycle == 100:
            wait_until(lambda: is_quiet(busy_server))
            before = process.memory_info().rss
    wait_until(lambda: is_quiet(busy_server))
    blocks = [busy_server.metric("octavo:kv_blocks", state=state) for state in ("free", "cached", "active")]
    assert (sum(blocks), blocks[2]) == (160, 0)
    wait_until(lambda: process.num_fds() <= fds)
    assert before is not None
    assert process.memory_info().rss - before < 50 * 2**20
    with busy_server.client() as client:
        answer = client.post("/v1/completions", json=ENDLESS | {"max_tokens": 5}).json()
    assert answer["usage"]["completion_tokens"] == 5
