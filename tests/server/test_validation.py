"""Nothing that a client sends gives a 500, a hang, or another client's trouble (D13, D14, D26, D27, B33, B35)."""

import json
import threading
import time
from typing import Any

import httpx
import psutil
import pytest

from tests.support.fake_server import ServerProcess

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
COMPLETION = {"prompt": "hi", "max_tokens": 2}


def check_error(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, (response.status_code, response.text[:300])
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"]
    assert error["code"]
    assert "Traceback" not in response.text
    return error


BAD_EVERYWHERE: list[tuple[str, Any]] = [
    ("n", 0), ("n", -1), ("n", 65), ("n", 10**6), ("n", 2**31), ("n", 1.5), ("n", "1"), ("n", True),
    ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 1.5), ("max_tokens", 10**9), ("max_tokens", 10**30),
    ("temperature", -1), ("temperature", "hot"), ("top_p", 0), ("top_p", 1.1), ("min_p", 2), ("top_k", -2),
    ("top_k", 10**30), ("seed", -1), ("seed", 2**63), ("seed", 1.5), ("seed", "5"),
    ("presence_penalty", 3), ("frequency_penalty", -3), ("repetition_penalty", 0),
    ("min_tokens", -1), ("min_tokens", 3),
    ("stop", ""), ("stop", [""]), ("stop", [None]), ("stop", 5), ("stop", ["x"] * 17), ("stop", "x" * 257),
    ("stop_token_ids", [264]), ("stop_token_ids", [-1]), ("stop_token_ids", [1] * 129), ("stop_token_ids", ["a"]),
    ("allowed_token_ids", []), ("allowed_token_ids", [264]), ("bad_words", ["x"] * 129), ("bad_words", [""]),
    ("logit_bias", {"264": 1}), ("logit_bias", {"a": 1}), ("logit_bias", {"1": 101}), ("logit_bias", [1]),
    ("prompt_logprobs", -1), ("prompt_logprobs", 10**6),
    ("cache_salt", ""), ("cache_salt", "x" * 1025), ("cache_salt", 5),
    ("priority", 10**30), ("truncate_prompt_tokens", 0), ("truncate_prompt_tokens", -2),
    ("use_beam_search", "yes"), ("length_penalty", 2.0),
    ("response_format", {"type": "nope"}), ("response_format", {}),
    ("stream_options", {"include_usage": True}), ("stream", "yes"), ("model", 5),
]  # fmt: skip

HUGE: list[tuple[str, Any]] = [
    ("stop", ["x"] * 500_000), ("stop", "x" * 10_000_000), ("allowed_token_ids", list(range(10**6))),
    ("bad_words", ["x"] * 10**6),
]  # fmt: skip

BAD_COMPLETIONS: list[tuple[str, Any]] = [
    ("prompt", ""), ("prompt", []), ("prompt", [[]]), ("prompt", ["good", ""]), ("prompt", None), ("prompt", 5),
    ("prompt", {}), ("prompt", ["a", [1]]), ("prompt", [1, "a"]), ("prompt", [True]), ("prompt", [1.5]),
    ("prompt", [264]), ("prompt", [-1]), ("prompt", [2**70]), ("prompt", ["a"] * 257), ("prompt", ["a"] * 100_000),
    ("prompt", [65] * 512), ("prompt", "x" * 6400), ("prompt", [[1], [[1]]]),
    ("logprobs", 21), ("logprobs", -1), ("logprobs", 10**6), ("logprobs", True),
    ("suffix", "end"), ("best_of", 10**6), ("best_of", 2),
]  # fmt: skip

BAD_CHAT: list[tuple[str, Any]] = [
    ("messages", []), ("messages", None), ("messages", "hi"), ("messages", ["hi"]), ("messages", [{"content": "a"}]),
    ("messages", [{"role": "user"}]), ("messages", [{"role": "user", "content": None}]),
    ("messages", [{"role": "user", "content": 5}]), ("messages", [{"role": 5, "content": "a"}]),
    ("messages", [{"role": "robot", "content": "a"}]),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ("messages", [{"role": "user", "content": "a"}] * 4097), ("messages", [{"role": "user", "content": "x" * 6400}]),
    ("top_logprobs", 3), ("tools", [{"type": "function"}]), ("tool_choice", "required"), ("functions", [{}]),
    ("chat_template", "{{ 1 }}"), ("max_completion_tokens", 0), ("max_completion_tokens", 600),
]  # fmt: skip


def case_id(value: Any) -> str:
    return repr(value)[:30]


@pytest.mark.parametrize(("field", "value"), BAD_EVERYWHERE + HUGE + BAD_COMPLETIONS, ids=case_id)
def test_bad_completion_values(client: httpx.Client, field: str, value: Any) -> None:
    fields = COMPLETION | {field: value} if field != "prompt" else {"add_special_tokens": False, "prompt": value}
    start = time.monotonic()
    error = check_error(client.post("/v1/completions", json=fields))
    assert time.monotonic() - start < 3.0
    assert error["param"] in (field, None)


@pytest.mark.parametrize(("field", "value"), BAD_EVERYWHERE + BAD_CHAT, ids=case_id)
def test_bad_chat_values(client: httpx.Client, field: str, value: Any) -> None:
    check_error(client.post("/v1/chat/completions", json=CHAT | {field: value}))


def test_both_ways_to_begin_an_answer(client: httpx.Client) -> None:
    fields = CHAT | {"continue_final_message": True, "add_generation_prompt": True}
    check_error(client.post("/v1/chat/completions", json=fields))
    check_error(client.post("/v1/chat/completions", json=CHAT | {"logprobs": True, "top_logprobs": 21}))


@pytest.mark.parametrize(
    "fields",
    [
        {"unknown": {"a": [1]}, "user": "x" * 10**7},  # D27
        {"max_tokens": None, "temperature": None, "stop": None, "logprobs": None, "logit_bias": {}},
        {"n": 64, "stop": ["x"] * 16, "logprobs": 20, "best_of": 64, "cache_salt": "x" * 1024},  # D14: at the limit
        {"stop_token_ids": [255] * 128, "stop": "y" * 256, "bad_words": ["z"] * 128, "seed": 2**63 - 1},
        {"prompt": ["a"] * 256, "max_tokens": 1},
        {"prompt": ["a"] * 16, "n": 64, "max_tokens": 1},
        {"prompt": [65] * 511, "max_tokens": 1},  # B33: one token of room
        {"prompt": [263]},  # B52: a row of the model beyond the tokenizer's ids
        {"truncate_prompt_tokens": 100, "prompt": "x" * 6400},
        {"truncate_prompt_tokens": -1, "prompt": "x" * 6400, "max_tokens": 100},
        {"skip_special_tokens": False, "min_tokens": 1, "ignore_eos": True, "priority": 0, "length_penalty": 1.0},
        {"suffix": "", "stream": False, "stop": [], "response_format": {"type": "text"}},
    ],
    ids=case_id,
)
def test_values_at_their_limits(client: httpx.Client, fields: dict[str, Any]) -> None:
    response = client.post("/v1/completions", json=COMPLETION | fields)
    assert response.status_code == 200, response.text[:300]


def test_choices_of_all_prompts_have_a_limit_together(client: httpx.Client) -> None:
    error = check_error(client.post("/v1/completions", json={"prompt": ["a"] * 256, "n": 64, "max_tokens": 1}))
    assert "256 prompts with n 64 are 16384 choices; a request may have 1024" in error["message"]
    assert error["param"] == "n"


def test_tools_may_be_ignored_on_purpose(client: httpx.Client) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    fields = CHAT | {"tools": [tool], "tool_choice": "none", "response_format": {"type": "text"}}
    assert client.post("/v1/chat/completions", json=fields).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"nul", b"[]", b"5", b'"x"', b"\xff\xfe{}", b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}',
        b'{"temperature": NaN}', b'{"temperature": 1e999}', b'{"prompt": "x", "n": ' + b"1" * 10**6 + b"}",
        b'{"prompt": ' + b"1" * 10**6 + b"}", b'{"prompt": "x", "temperature": ' + b"1" * 10**6 + b"}",
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"[" * 1_000_000, b'{"x":' * 100_000,
        b'{"prompt": "x", "x": ' + b"[" * 64 + b"]" * 64 + b"}", b'["' * 2_000_000, b'"' * 3_000_000,
        b'{"prompt": [' + b"1," * 4_000_000 + b"1]}", b'{"prompt": [' + b"[]," * 2_000_000 + b"[]]}",
    ],
    ids=case_id,
)  # fmt: skip
def test_bad_bodies(client: httpx.Client, body: bytes) -> None:
    start = time.monotonic()
    check_error(client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"}))
    assert time.monotonic() - start < 3.0


def test_nesting_below_the_limit(client: httpx.Client) -> None:
    body = b'{"prompt": "[[\\"[[", "x": ' + b"[" * 63 + b"]" * 63 + b"}"
    assert client.post("/v1/completions", content=body).status_code == 200


def test_unknown_paths_and_methods(client: httpx.Client) -> None:
    check_error(client.get("/nope"), 404)
    check_error(client.post("/v1/completions/"), 404)
    check_error(client.get("/v1/completions"), 405)
    check_error(client.delete("/v1/models"), 405)


@pytest.mark.parametrize(
    "path", ["/health", "/v1/models", "/version", "/load", "/openapi.json", "/none", "/v1/completions"]
)
def test_head_is_get_without_a_body(client: httpx.Client, path: str) -> None:
    """Probes of load balancers ask so."""
    head, get = client.head(path), client.get(path)
    names = ("content-type", "content-length", "allow")
    assert head.status_code == get.status_code
    assert [head.headers.get(name) for name in names] == [get.headers.get(name) for name in names]
    assert head.content == b""
    assert client.get("/health").status_code == 200  # on the same connection


def test_body_too_large(server: ServerProcess) -> None:
    """413 before parsing, with and without a declared length; memory stays."""
    before = psutil.Process(server.process.pid).memory_info().rss

    def pieces() -> Any:
        for _ in range(40):
            yield b"x" * 2**20

    start = time.monotonic()
    with server.client() as client:
        check_error(client.post("/v1/completions", content=b"x" * 200 * 2**20), 413)
        check_error(client.post("/v1/completions", content=pieces()), 413)
        assert time.monotonic() - start < 30.0
        assert client.get("/health").status_code == 200
    assert psutil.Process(server.process.pid).memory_info().rss - before < 200 * 2**20


def test_headers_too_large(server: ServerProcess) -> None:
    with server.client() as client:
        check_error(client.get("/health", headers={"X-Long": "x" * 10_000_000}), 431)
    with server.client() as client:
        assert client.get("/health", headers={"X-Long": "x" * 10_000}).status_code == 200


def test_not_http(server: ServerProcess) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(b"\x00\x01nonsense\r\n\r\n")
        answer = raw.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


def test_bad_requests_leave_streams_and_health_alone(slow_server: ServerProcess) -> None:
    """B35, B56 (iii): huge inputs beside a running stream and a poll of /health."""
    gaps: list[float] = []

    def stream() -> None:
        fields = {"prompt": "x", "max_tokens": 60, "stream": True}
        with slow_server.client() as client, client.stream("POST", "/v1/completions", json=fields) as response:
            last = time.monotonic()
            for _ in response.iter_lines():
                gaps.append(time.monotonic() - last)
                last = time.monotonic()

    thread = threading.Thread(target=stream)
    thread.start()
    huge = [
        json.dumps({"prompt": "word " * 5_400_000}),
        json.dumps({"prompt": "x", "stop": ["x"] * 500_000}),
        '{"prompt": "' + '\\"' * 10_000_000 + '"}',
        "[" * 30_000_000,
    ]
    with slow_server.client() as client:
        for body in huge:
            sender = threading.Thread(target=lambda body=body: client.post("/v1/completions", content=body.encode()))
            sender.start()
            while sender.is_alive():
                start = time.monotonic()
                assert client.get("/health").status_code == 200
                assert time.monotonic() - start < 1.0
                time.sleep(0.02)
            sender.join()
    thread.join()
    assert len(gaps) > 60
    assert max(gaps[2:]) < 1.0
