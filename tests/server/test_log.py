"""The log: JSON lines of both processes, and the line of a request, with what may be in it and what never is."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.core.errors import ConfigurationError
from octavo.core.sampling_params import SamplingParams
from octavo.engine.log_format import JsonFormatter, named, served_request_id
from octavo.engine.messages import EngineOutputs, EngineRequest, RequestTimes
from octavo.server import ledger as ledger_module
from octavo.server.ledger import Entry, Ledger
from octavo.server.request_line import MAX_TEXT
from octavo.server.settings import ServerSettings
from octavo.server.visit import Visit
from tests.support.fake_server import ServerProcess, running_real_server, running_server
from tests.support.models import rand_model
from tests.support.waiting import wait_until

PROMPT = "nobody may read this"
STABLE = ["time", "level", "process", "logger", "message"]


def json_lines(server: ServerProcess) -> list[dict[str, Any]]:
    """Every line of the log is an object."""
    return [json.loads(line) for line in list(server.lines)]


def request_lines(server: ServerProcess, count: int) -> list[dict[str, Any]]:
    """Those of the requests to the API, in the order in which they ended."""

    def found() -> list[dict[str, Any]]:
        return [line for line in json_lines(server) if line.get("path", "").startswith("/v1/")]

    wait_until(lambda: len(found()) >= count)
    assert len(found()) == count
    return found()


def test_a_line_of_json_has_stable_fields_and_the_stack_of_an_error() -> None:
    try:
        raise ValueError("two\nlines and half a pair: \ud83d")
    except ValueError:
        record = logging.makeLogRecord(
            {
                "name": "octavo.engine",
                "levelname": "ERROR",
                "msg": "request %s failed",
                "args": ("a/0",),
                "exc_info": sys.exc_info(),
                "created": 1.5,
                **named(engine_id="a/0"),
            }
        )
    text = JsonFormatter().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert list(line) == [*STABLE, "engine_id", "stack"]
    assert (line["time"], line["message"], line["engine_id"]) == (
        "1970-01-01T00:00:01.500+00:00",
        "request a/0 failed",
        "a/0",
    )
    assert "Traceback" in line["stack"]
    token = served_request_id.set("mine")
    assert json.loads(JsonFormatter().format(record))["request_id"] == "mine"
    served_request_id.reset(token)


def test_a_server_logs_a_json_object_a_line_and_one_a_request() -> None:
    settings = {"log_format": "json", "log_requests": True, "api_keys": ["key-secret"], "host": "127.0.0.1"}
    with running_server({"max_model_len": 256}, **settings) as server:
        server.wait_ready()
        key = {"Authorization": "Bearer key-secret"}
        with server.client(**key) as client:
            body = {"prompt": PROMPT, "max_tokens": 3}
            client.post("/v1/completions?key=key-secret", json=body, headers={"X-Request-Id": "one"})
            client.post("/v1/completions", json=body | {"n": 2, "stream": True}, headers={"X-Request-Id": "two"})
            client.post("/v1/completions", json=body | {"max_tokens": 9999}, headers={"X-Request-Id": "three"})
            client.post("/v1/completions", json=body | {"n": "x"}, headers={"X-Request-Id": "four"})
        with server.client() as client:
            client.get("/v1/models", headers={"X-Request-Id": "five"})
        one, two, three, four, five = request_lines(server, 5)
        server.process.terminate()
        assert server.wait_exit() == 0
    assert [line["request_id"] for line in (one, two, three, four, five)] == ["one", "two", "three", "four", "five"]
    assert list(one)[:6] == [*STABLE, "request_id"]
    assert (one["method"], one["path"], one["status"], one["client"]) == (
        *("POST", "/v1/completions", 200),
        "127.0.0.1",
    )
    assert one["engine_id"].startswith("cmpl-")
    assert (one["prompt_tokens"], one["completion_tokens"]) == (1 + len(PROMPT), 3)
    assert one["finish_reasons"] == {"length": 1}
    assert 0 <= one["queue_seconds"] <= one["ttft_seconds"] <= one["seconds"] + 0.1
    assert (two["completion_tokens"], two["finish_reasons"]) == (6, {"length": 2})
    assert (three["status"], three["error"]) == (400, "context_length_exceeded")
    assert (four["status"], four["error"]) == (400, "invalid_request")
    assert "engine_id" not in four
    assert five["status"] == 401
    assert not any(word in server.log for word in ("key-secret", PROMPT))
    assert {line["process"] for line in json_lines(server)} >= {"MainProcess"}


def test_the_line_in_words() -> None:
    with running_server({"max_model_len": 256}, log_requests=True) as server:
        with server.wait_ready().client() as client:
            client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 3}, headers={"X-Request-Id": "mine"})
            client.post("/v1/completions", json={"prompt": ""}, headers={"X-Request-Id": "none"})
        wait_until(lambda: '"POST /v1/completions" 200 mine ' in server.log)
        line = next(line for line in server.lines if " mine " in line)
    assert f", {1 + len(PROMPT)} prompt tokens (3 cached), 3 generated, waited 0." in line
    assert line.endswith(" s, 1 length")
    assert PROMPT not in server.log


def test_who_leaves_has_aborted() -> None:
    with running_server({"step_seconds": 0.05, "max_model_len": 512}, log_requests=True, log_format="json") as server:
        url = f"{server.wait_ready().url}/v1/completions"
        body = {"prompt": PROMPT, "max_tokens": 400, "stream": True}
        with httpx.stream("POST", url, json=body) as answer:
            next(answer.iter_lines())
        (line,) = request_lines(server, 1)
    assert line["finish_reasons"] == {"abort": 1}
    assert 1 <= line["completion_tokens"] < 400


def test_text_is_logged_where_it_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="log_request_text"):
        ServerSettings("m", log_request_text=True)
    settings = {"log_format": "json", "log_requests": True, "log_request_text": True}
    with running_server({"max_model_len": 8192}, **settings) as server:
        with server.wait_ready().client() as client:
            client.post("/v1/completions", json={"prompt": [PROMPT, "x" * 5000], "max_tokens": 1})
        (line,) = request_lines(server, 1)
    first, second = line["prompts"]
    assert first.endswith(PROMPT)
    assert len(second) <= MAX_TEXT


def test_the_engine_process_logs_in_the_same_form(tmp_path: Path) -> None:
    """What ends the server is a line too."""
    flags = ["--log-format", "json", "--num-blocks", "64", "--max-model-len", "256"]
    with running_real_server(rand_model(tmp_path), *flags) as server:
        server.wait_ready(60.0)
        server.process.terminate()
        assert server.wait_exit() == 0
    assert {line["process"] for line in json_lines(server)} == {"MainProcess", "octavo-engine"}
    with running_real_server(tmp_path / "nowhere", "--log-format", "json") as server:
        assert server.wait_exit(60.0) == 1
    last = json_lines(server)[-1]
    assert last["level"] == "ERROR"
    assert "nowhere" in last["message"]


@pytest.mark.parametrize(
    ("flags", "variables", "config"),
    [
        (["--log-format", "json", "--no-such-flag"], {}, None),
        (["--log-format=json", "--port", "none"], {}, None),
        (["--no-such-flag"], {"OCTAVO_LOG_FORMAT": "json"}, None),
        (["--log-format", "json", "--limit-n", "0"], {"OCTAVO_PROT": "1"}, None),
        (["--port", "none"], {}, "log-format: json"),
        (["--log-format", "json", "--admin-key", "a", "--tenant-key", "t=a"], {}, None),
    ],
)
def test_what_is_wrong_with_the_command_is_a_line_of_json(
    tmp_path: Path, flags: list[str], variables: dict[str, str], config: str | None
) -> None:
    if config is not None:
        (tmp_path / "c.yaml").write_text(config)
        flags = [*flags, "--config", str(tmp_path / "c.yaml")]
    command = [sys.executable, "-m", "octavo", "serve", str(tmp_path), *flags]
    ended = subprocess.run(command, capture_output=True, env=os.environ | variables, text=True, timeout=60, check=False)
    assert ended.returncode in (1, 2)
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [line["level"] for line in lines] == (["WARNING"] if "OCTAVO_PROT" in variables else []) + ["ERROR"]


def test_an_error_that_nobody_catches_is_a_line_of_json() -> None:
    code = (
        "import logging, threading; from octavo.engine.log_format import set_up_logging; "
        "set_up_logging(logging.INFO, 'json'); thread = threading.Thread(target=lambda: 1 / 0); "
        "thread.start(); thread.join(); 1 / 0"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [line["level"] for line in lines] == ["CRITICAL", "CRITICAL"]
    assert all("ZeroDivisionError" in line["stack"] for line in lines)


def times(name: str, index: int) -> RequestTimes:
    return RequestTimes(name, index, 1.0, 2.0, 3.0, 4.0, 5, 6, "stop")


def test_a_request_is_in_the_ledger_until_each_choice_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Entry] = []
    heard: list[int] = []
    ledger = Ledger(told.append)
    observe = ledger.observing(lambda _outputs, iterations: heard.extend(iterations))
    visit = Visit("mine")
    ledger.begin(EngineRequest("a", [1], SamplingParams(n=2), 1.0), visit)
    ledger.begin(EngineRequest("b", [1], SamplingParams(), 1.0), visit)
    observe(EngineOutputs(finished=[times("a", 1), times("unknown", 0)]), [3])
    assert (told, heard) == ([], [3])
    ledger.fail("a", "late")  # one of its choices has ended: the others will
    assert told == []
    ledger.begin(EngineRequest("c", [1], SamplingParams(n=2), 1.0), Visit("other"))
    observe(EngineOutputs(finished=[times("c", 1)]), [])
    assert ledger.lose("c", "engine_dead") == 1
    assert told.pop().error == "engine_dead"
    observe(EngineOutputs(finished=[times("a", 0)]), [])
    ledger.fail("b", "invalid_request")
    ledger.fail("b", "again")
    assert [(entry.request.request_id, len(entry.ended), entry.error) for entry in told] == [
        ("a", 2, ""),
        ("b", 0, "invalid_request"),
    ]
    assert len(visit.ended) == 2
    assert len(ledger) == 0
    monkeypatch.setattr(ledger_module, "MAX_OPEN", 3)
    for name in "abcde":
        ledger.begin(EngineRequest(name, [1], SamplingParams(), 1.0), visit)
    assert list(ledger._open) == ["c", "d", "e"]
