"""B13, B03, B54, B56 from outside: `octavo serve` on RAND with a real engine in its own process."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.fake_engine import MODEL
from tests.support.fake_server import ServerProcess, running_real_server
from tests.support.models import RAND_VOCAB
from tests.support.parity import random_ids
from tests.support.waiting import wait_until

FLAGS = ("--block-size", "4", "--num-blocks", "300", "--max-num-seqs", "8", "--max-num-batched-tokens", "16")
EOS = RAND_VOCAB - 2
PROBE = random_ids(12, RAND_VOCAB, seed=12)


@pytest.fixture(scope="module")
def server(rand: Path) -> Iterator[ServerProcess]:
    with running_real_server(rand, *FLAGS) as running:
        yield running.wait_ready()


@pytest.fixture
def api(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def quiet(server: ServerProcess) -> bool:
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    return all(server.metric(name) == 0 for name in names)


def complete(api: openai.OpenAI, **fields: Any) -> Any:
    asked: dict[str, Any] = {"model": MODEL, "prompt": PROBE, "max_tokens": 8, "temperature": 0}
    return api.completions.create(**asked | fields)


def test_b13_choices_streamed_and_whole(api: openai.OpenAI, server: ServerProcess) -> None:
    fields: dict[str, Any] = {"n": 4, "temperature": 1, "seed": 7, "max_tokens": 30, "logit_bias": {str(EOS): 9}}
    whole, again = complete(api, **fields), complete(api, **fields)
    texts = [choice.text for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert texts == [choice.text for choice in again.choices]
    assert len(set(texts)) > 1
    streamed, endings = [""] * 4, [0] * 4
    for chunk in complete(api, stream=True, **fields):
        for choice in chunk.choices:
            assert not endings[choice.index]
            streamed[choice.index] += choice.text
            endings[choice.index] += choice.finish_reason is not None
    assert (streamed, endings) == (texts, [1] * 4)
    assert len(complete(api, n=11).choices) == 11  # more than max-num-seqs: in turns (D3)
    wait_until(lambda: quiet(server))


def test_b03_refused_with_the_numbers_while_a_stream_goes_on(api: openai.OpenAI, server: ServerProcess) -> None:
    right = complete(api, max_tokens=200, extra_body={"ignore_eos": True}).choices[0].text
    stream = complete(api, max_tokens=200, stream=True, extra_body={"ignore_eos": True})
    with pytest.raises(openai.BadRequestError, match=r"maximum context length is 1200 tokens.*the prompt has 1300"):
        complete(api, prompt=[1] * 1300)
    with pytest.raises(openai.BadRequestError) as error:
        complete(api, max_tokens=2000)
    assert error.value.param == "max_tokens"
    assert "".join(chunk.choices[0].text for chunk in stream) == right
    wait_until(lambda: quiet(server))


LONG = {"model": MODEL, "prompt": PROBE, "max_tokens": 1000, "ignore_eos": True}
GONE: dict[str, dict[str, Any]] = {
    "streaming": {"stream": True},
    "whole": {},
    "n=4": {"n": 4},
    "queued": {"n": 30},
    "in its prefill": {"prompt": random_ids(1100, RAND_VOCAB), "max_tokens": 50},
}


@pytest.mark.parametrize("state", GONE)
def test_b54_a_client_that_is_gone_costs_nothing_more(state: str, api: openai.OpenAI, server: ServerProcess) -> None:
    right = complete(api).choices[0].text
    ended = server.metric("vllm:request_success_total", finished_reason="length")
    for cycle in range(3):
        body = json.dumps(LONG | GONE[state] | {"cache_salt": f"{state} {cycle}"}).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            wait_until(lambda: server.metric("vllm:num_requests_running") > 0)
            # The engine stands still until the client is missed: else a fast one would be done by then.
            with server.engine_stopped():
                raw.close()
                wait_until(lambda: server.num_open == 0)
        wait_until(lambda: quiet(server))
    assert server.metric("vllm:request_success_total", finished_reason="length") == ended
    assert complete(api).choices[0].text == right
    generated = server.metric("vllm:generation_tokens_total")
    time.sleep(0.2)
    assert server.metric("vllm:generation_tokens_total") == generated


class Stream(threading.Thread):
    """One long request, its lines as they come."""

    def __init__(self, server: ServerProcess, **fields: Any) -> None:
        super().__init__()
        self._url, self._fields = server.url, LONG | fields
        self.lines: list[str] = []
        self.status = 0
        self.start()

    def run(self) -> None:
        with httpx.stream("POST", f"{self._url}/v1/completions", json=self._fields, timeout=60.0) as response:
            self.status = response.status_code
            self.lines += response.iter_lines()


def test_b56_the_engine_is_killed(rand: Path) -> None:
    """(i) Streams get an error event and no [DONE], the whole one a 503; the server ends with a code that is not 0. All
    four are to be in work, which they would not be if admission looked ahead: together they outgrow the pool."""
    with running_real_server(rand, *FLAGS, "--admission-quantile", "0") as server:
        server.wait_ready()
        requests = [*(Stream(server, stream=True) for _ in range(3)), Stream(server)]
        wait_until(lambda: server.metric("vllm:num_requests_running") == 4)
        os.kill(server.engine_pid, signal.SIGKILL)
        for request in requests:
            request.join(10.0)
        assert server.wait_exit() != 0
    for request in requests[:3]:
        assert "data: [DONE]" not in request.lines
        assert any('"error"' in line for line in request.lines)
    assert requests[3].status == 503


def test_b56_sigterm_lets_running_requests_finish(rand: Path) -> None:
    """(v) D22."""
    with running_real_server(rand, *FLAGS) as server:
        server.wait_ready()
        running = [Stream(server, stream=True, max_tokens=600) for _ in range(2)]
        wait_until(lambda: server.metric("vllm:num_requests_running") == 2)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        for request in running:
            request.join(5.0)
            assert "data: [DONE]" in request.lines


def test_b56_bad_model_path(tmp_path: Path) -> None:
    """(vi) One clear sentence, a code that is not 0, no traceback."""
    with running_real_server(tmp_path / "nowhere") as server:
        assert server.wait_exit() != 0
        assert "nowhere" in server.log
        assert "Traceback" not in server.log
