"""What was decided about requests, over HTTP: GET /debug/requests, by the ids that clients know; and ``octavo top``."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.fake_server import ROOT, ServerProcess, running_real_server, running_server
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.parity import random_ids
from tests.support.stream_server import Script, stream_server
from tests.support.waiting import wait_until

PLAIN, ADMIN = "plain-key", "admin-key"


@pytest.fixture(scope="module")
def debug_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model: Path = rand_model(tmp_path_factory.mktemp("rand"))
    flags = ("--num-blocks", "80", "--max-num-seqs", "2", "--max-num-batched-tokens", "32", "--threads", "1")
    keys = ("--api-key", PLAIN, "--admin-key", ADMIN, "--host", "127.0.0.1", "--max-num-queued-tokens", "300")
    with running_real_server(model, *flags, *keys) as running:
        yield running.wait_ready()


@pytest.fixture
def admin(debug_server: ServerProcess) -> Iterator[httpx.Client]:
    with debug_server.client(Authorization=f"Bearer {ADMIN}") as client:
        yield client


def complete(client: httpx.Client, trace_id: str, **fields: Any) -> httpx.Response:
    body = {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0, "ignore_eos": True} | fields
    return client.post("/v1/completions", json=body, headers={"X-Request-Id": trace_id})


def test_a_request_by_each_of_its_ids(admin: httpx.Client) -> None:
    prompt = random_ids(70, RAND_VOCAB, seed=1)
    answer = complete(admin, "mine/1", prompt=prompt)
    found = [admin.get(f"/debug/requests/{name}") for name in ("mine/1", answer.json()["id"])]
    for each in found:
        assert each.status_code == 200
        (request,) = each.json()["requests"]
        assert request["id"] == answer.json()["id"]
        assert request["x_request_id"] == "mine/1"
        assert (request["prompt_tokens"], request["choices"], request["generated_tokens"]) == (70, 1, 4)
        assert (request["finish_reason"], request["statuses"], request["num_dropped_events"]) == ("length", {}, 0)
    events = request["events"]
    assert [event["event"] for event in events] == ["arrived", "admitted", "chunk", "chunk", "first_token", "finished"]
    assert events[1] | {"cached_tokens": 0, "tokens": 32} == events[1]
    assert [event["from_token"] for event in events[2:4]] == [32, 64]
    assert events[-1] | {"generated_tokens": 4, "reason": "length"} == events[-1]
    assert events[0]["seconds"] >= 0
    assert [event["seconds"] for event in events] == sorted(event["seconds"] for event in events)
    again = complete(admin, "mine/2", prompt=prompt)
    (request,) = admin.get(f"/debug/requests/{again.json()['id']}").json()["requests"]
    assert request["events"][1] | {"cached_tokens": 69, "tokens": 1} == request["events"][1]


def test_prompts_of_one_request_and_requests_of_one_id(admin: httpx.Client) -> None:
    answer = complete(admin, "many", prompt=[[1, 2], [3, 4, 5]], n=2)
    requests = admin.get(f"/debug/requests/{answer.json()['id']}").json()["requests"]
    assert [request["id"] for request in requests] == [f"{answer.json()['id']}-{index}" for index in range(2)]
    assert [request["choices"] for request in requests] == [2, 2]
    complete(admin, "many")
    assert len(admin.get("/debug/requests/many").json()["requests"]) == 3


def test_chat_and_streams_too(admin: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "stream": True}
    answer = admin.post("/v1/chat/completions", json=body, headers={"X-Request-Id": "talk"})
    assert answer.status_code == 200
    (request,) = admin.get("/debug/requests/talk").json()["requests"]
    assert request["id"].startswith("chatcmpl-")
    assert request["id"] in answer.text


def test_what_is_refused_is_told_with_the_reason(admin: httpx.Client) -> None:
    assert complete(admin, "large", prompt=[1] * 301).status_code == 400
    assert complete(admin, "endless", max_tokens=10**6).status_code == 400
    found = admin.get("/debug/requests/large").json()
    assert found["requests"] == []
    (refused,) = found["refused"]
    assert (refused["status"], refused["code"], refused["x_request_id"]) == (400, "invalid_request", "large")
    assert "301 prompt tokens, more than may ever wait: 300" in refused["message"]
    (request,) = admin.get("/debug/requests/endless").json()["requests"]
    assert [event["event"] for event in request["events"]] == ["arrived", "refused"]
    assert "1000003" in request["events"][1]["reason"]


def test_who_asked_and_its_times_are_told(tmp_path: Path) -> None:
    """While it waits, also what counts for it."""
    flags = ("--num-blocks", "80", "--max-num-seqs", "1", "--threads", "1", "--admin-key", ADMIN)
    more = ("--scheduling-policy", "priority", "--tenant-header", "x-tenant", "--max-queue-seconds", "50")
    body = {"prompt": [1], "max_tokens": 900, "stream": True, "ignore_eos": True}
    with (
        running_real_server(rand_model(tmp_path), *flags, *more) as server,
        ThreadPoolExecutor(1) as pool,
        server.wait_ready().client(Authorization=f"Bearer {ADMIN}") as admin,
        admin.stream("POST", "/v1/completions", json=body) as response,
    ):
        next(response.iter_lines())
        headers = {"X-Request-Id": "waits", "X-Tenant": "search", "X-Request-Timeout-Ms": "2500"}
        fields = {"prompt": [1], "max_tokens": 1, "priority": 3}
        waits = pool.submit(httpx.post, f"{server.url}/v1/completions", json=fields, headers=headers)
        wait_until(lambda: admin.get("/debug/requests/waits").is_success)
        (request,) = admin.get("/debug/requests/waits").json()["requests"]
        waits.result()
    assert (request["tenant"], request["priority"]) == ("search", 3)
    assert (request["max_queue_seconds"], request["max_request_seconds"]) == (50.0, 2.5)
    assert set(request["standing"]) <= {"passed_by", "ahead", "aged_priority"}


def test_a_deadline_is_told(admin: httpx.Client) -> None:
    assert complete(admin, "late", max_tokens=400, request_timeout_ms=1).status_code == 504
    (request,) = admin.get("/debug/requests/late").json()["requests"]
    assert [event["event"] for event in request["events"]][-2:] == ["timed_out", "finished"]
    assert "may take 0.001 s" in request["events"][-2]["reason"]


def test_the_list_has_the_newest_first(admin: httpx.Client) -> None:
    ids = [complete(admin, f"listed-{number}").json()["id"] for number in range(3)]
    body = admin.get("/debug/requests", params={"limit": 2}).json()
    assert [request["id"] for request in body["data"]] == [ids[2], ids[1]]
    assert [event["event"] for event in body["data"][0]["events"]] == ["finished"]
    assert len(admin.get("/debug/requests").json()["data"]) > 2


NO_LIMITS = ["0", "-1", "+5", "5_0", "5.0", "٣", "many", "", "1025", "9" * 99, "0" * 15 + "5", "000000005" + "9" * 5000]


@pytest.mark.parametrize("limit", NO_LIMITS)
def test_a_limit_that_is_none(admin: httpx.Client, limit: str) -> None:
    assert admin.get("/debug/requests", params={"limit": limit}).status_code == 400


def test_unknown_ids(admin: httpx.Client) -> None:
    answer = admin.get("/debug/requests/nobody")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "request_not_found")


@pytest.mark.parametrize(("key", "status"), [(None, 401), ("wrong", 401), (PLAIN, 403), (ADMIN, 200)])
@pytest.mark.parametrize("path", ["/debug/requests", "/debug/requests/a"])
def test_it_is_the_admins(debug_server: ServerProcess, key: str | None, status: int, path: str) -> None:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with debug_server.client(**headers) as client:
        answer = client.get(path)
    assert answer.status_code in ((200, 404) if status == 200 else (status,))


def test_without_an_admin_key_it_is_off(server: ServerProcess) -> None:
    with server.client() as client:
        answer = client.get("/debug/requests")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_only")


def top(*flags: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "octavo", "top", "--once", "--interval", "0.2", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_top_shows_figures_and_requests(debug_server: ServerProcess, admin: httpx.Client) -> None:
    answer = [complete(admin, text) for text in ("first", "second", "shown")][-1]
    shown = top("--url", debug_server.url, "--api-key", ADMIN, "--limit", "3")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0] == f"octavo top: fake at {debug_server.url}"
    assert lines[2].startswith("running 0   waiting 0   queue 0 requests, 0 tokens")
    assert lines[3].startswith("prompt 0.0 tokens/s   generation 0.0 tokens/s")
    assert lines[4].startswith("KV cache 0.0% in use (0 active, ")
    assert lines[7].split() == [
        *("REQUEST", "TENANT", "PRIORITY", "AGE", "STATE", "PROMPT", "OUT", "LAST", "DECISION"),
    ]
    assert len(lines) == 11
    assert lines[8].startswith(answer.json()["id"][:24])
    assert lines[8].split()[1:3] == ["default", "0"]
    assert "finished (step " in lines[8]
    assert lines[8].endswith("generated tokens 4, preemptions 0): length")


def test_top_without_the_admin_key_shows_figures(debug_server: ServerProcess) -> None:
    shown = top("--url", debug_server.url, "--api-key", PLAIN)
    assert shown.returncode == 0
    assert "Requests are not shown: /debug/requests needs the admin key." in shown.stdout


def test_top_says_what_is_wrong(debug_server: ServerProcess) -> None:
    for flags, message in (
        (("--url", debug_server.url), "answers 401: The API key is missing or wrong"),
        (("--url", "http://127.0.0.1:1"), "cannot reach http://127.0.0.1:1: Connection refused"),
        *((("--url", url), f"{url!r} is no address of a server") for url in ("nonsense", "http://[::1", "http://a:b")),
        (("--url", "http://a b"), "cannot reach http://a b: "),
        (("--url", debug_server.url, "--api-key", "ключ"), "answers 401: The API key is missing or wrong"),
    ):
        failed = top(*flags)
        assert failed.returncode == 1
        assert message in failed.stderr
        assert "Traceback" not in failed.stderr


def test_top_of_what_is_no_server_of_octavo() -> None:
    with stream_server(Script(lambda _index, _body: [], metrics=["<p>{nonsense"])) as seen:
        failed = top("--url", f"http://127.0.0.1:{seen.port}")
    assert failed.returncode == 1
    assert "does not answer as a server of Octavo does" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_top_while_requests_run() -> None:
    """Rates and states of what is going on."""
    with running_server({"step_seconds": 0.05, "max_num_seqs": 1}) as server:
        body = {"prompt": "x", "max_tokens": 400, "stream": True}
        with server.wait_ready().client() as client, client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            shown = top("--url", server.url).stdout
    assert "running 1   waiting 0" in shown
    rate = float(shown.partition("generation ")[2].partition(" ")[0])
    assert 2 < rate < 40
