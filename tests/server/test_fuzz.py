"""Everything that the OpenAPI document allows, and much that it does not, made up by schemathesis: no 500, no hang, no
leak, answers as the document says; afterwards every block is free."""

from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.fake_server import ServerProcess, running_real_server
from tests.support.models import rand_model
from tests.support.waiting import wait_until

ADMIN = {"Authorization": "Bearer boss"}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
SECONDS = 60.0
"""For one answer: far more than any takes."""


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model: Path = rand_model(tmp_path_factory.mktemp("rand"))
    flags = ("--num-blocks", "64", "--max-model-len", "128", "--max-num-seqs", "8", "--threads", "1")
    flags += ("--admin-key", "boss", "--limit-n", "4", "--limit-prompts", "4", "--limit-choices", "8")
    flags += ("--scheduling-policy", "priority", "--kv-sanitizer", "--tool-call-parser", "hermes")
    with running_real_server(model, *flags) as running:
        with running.wait_ready().client(**ADMIN) as client:  # what is started by the first of a kind stays
            chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
            assert client.post("/v1/chat/completions", json=chat).status_code == 200
            regex = {"prompt": "a", "max_tokens": 2, "guided_regex": "a*"}
            assert client.post("/v1/completions", json=regex).status_code == 200
        yield running


def fuzz(server: ServerProcess, num_requests: int) -> Counter[int]:
    """How often which status came. Requests with a body get most of them, half of these against their schema."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json", headers=ADMIN)
    operations = [found.ok() for found in schema.get_all_operations()]
    counts: Counter[int] = Counter()
    weights = [8 if operation.body else 1 for operation in operations]
    with requests.Session() as session:
        for operation, weight in zip(operations, weights, strict=True):
            modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE) if operation.body else (GenerationMode.POSITIVE,)
            count = max(1, num_requests * weight // (sum(weights) * len(modes)))
            for mode in modes:
                counts += fuzz_operation(session, server.url, operation, mode, count)
    return counts


def fuzz_operation(
    session: requests.Session, url: str, operation: APIOperation, mode: GenerationMode, count: int
) -> Counter[int]:
    counts: Counter[int] = Counter()

    @seed(count)
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Case) -> None:
        answer = case.call(base_url=url, session=session, headers=ADMIN, timeout=SECONDS)
        counts[answer.status_code] += 1
        ran_out_of_time = answer.status_code == HTTPStatus.GATEWAY_TIMEOUT  # as its header asked
        case.validate_response(answer, checks=CHECKS[ran_out_of_time:])
        counts.update(ask_for_less(session, url + operation.path, case.body, answer.content))

    ask()
    return counts


def ask_for_less(session: requests.Session, url: str, body: Any, answer: bytes) -> Iterator[int]:
    """Without the field that was to blame, and again: so what fits together in the end gets to the engine. Statuses."""
    if not isinstance(body, dict):
        return
    body = dict(body)
    while True:
        try:
            param = msgspec.json.decode(answer)["error"]["param"]
        except (ValueError, KeyError, TypeError):  # it was served, as JSON or as a stream
            return
        if param not in body:
            return
        del body[param]
        again = session.post(url, json=body, headers=ADMIN, timeout=SECONDS)
        assert again.status_code < 500 or again.status_code == HTTPStatus.GATEWAY_TIMEOUT, (again.text[:500], body)
        yield again.status_code
        answer = again.content


def check_nothing_is_left(server: ServerProcess, num_fds: int) -> None:
    process = psutil.Process(server.process.pid)
    with server.client(**ADMIN) as client:
        for pin in client.get("/admin/pins").json()["data"]:
            client.delete(f"/admin/pins/{pin['id']}")
    wait_until(lambda: not server.metric("octavo:kv_blocks", state="active") and process.num_fds() <= num_fds)
    figures = ("vllm:num_requests_running", "vllm:num_requests_waiting", "octavo:swapped_blocks")
    assert [server.metric(name) for name in (*figures, "octavo:queued_requests", "octavo:queued_tokens")] == [0] * 5
    assert server.metric("octavo:kv_blocks_allocatable") == server.metric("octavo:kv_blocks_total") == 64
    assert "Traceback" not in server.log
    with server.client() as client:
        assert client.get("/health").status_code == 200


def test_some_hundred_requests(fuzzed: ServerProcess) -> None:
    before = psutil.Process(fuzzed.process.pid).num_fds()
    counts = fuzz(fuzzed, 500)
    assert min(counts[200], counts[400]) > 25
    check_nothing_is_left(fuzzed, before + 2)


@pytest.mark.soak
def test_5000_requests(fuzzed: ServerProcess) -> None:
    before = psutil.Process(fuzzed.process.pid).num_fds()
    fuzz(fuzzed, 300)
    rss = psutil.Process(fuzzed.process.pid).memory_info().rss
    counts = fuzz(fuzzed, 5000)
    assert min(counts[200], counts[400]) > 250
    check_nothing_is_left(fuzzed, before + 2)
    assert psutil.Process(fuzzed.process.pid).memory_info().rss - rss < 100 * 2**20
