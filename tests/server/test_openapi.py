"""The OpenAPI document is true: routes, answers, streams, limits; and what it allows to be sent gives no 500."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from jsonschema_rs import validator_for

from octavo.core.sampling_params import SamplingLimits
from octavo.server import admin, completions, embeddings, openapi, system, tokenize
from octavo.server import answer_shapes as shapes
from octavo.server.chat import routes as chat
from octavo.server.limits import ServerLimits
from octavo.server.messages import routes as messages
from octavo.server.messages.shapes import CountedTokens, MessageBody, MessageErrorBody
from octavo.server.openapi import ROUTES, document
from octavo.server.responses import routes as responses
from octavo.server.responses.shapes import ResponseBody
from octavo.server.settings import ServerSettings
from octavo.server.watching import debug, pool
from tests.support.fake_server import ServerProcess, running_real_server
from tests.support.models import rand_model

ADMIN = {"Authorization": "Bearer boss"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6}
COMPLETION: dict[str, Any] = {"prompt": "hello", "max_tokens": 6}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"n": 2, "temperature": 1, "seed": 3},
    {"return_token_ids": True},
    {"stream_options": {"include_usage": True}},
    {"use_beam_search": True, "n": 2},
    {"stop": ["e"], "include_stop_str_in_output": True},
]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model: Path = rand_model(tmp_path_factory.mktemp("rand"))
    flags = ("--num-blocks", "64", "--max-model-len", "128", "--max-num-seqs", "8", "--threads", "1")
    flags += (
        "--admin-key",
        "boss",
        "--limit-n",
        "4",
        "--limit-prompts",
        "4",
        "--limit-choices",
        "8",
        "--swap-space",
        "0",
    )
    with running_real_server(model, *flags) as running:
        yield running.wait_ready()


@pytest.fixture
def asking(real: ServerProcess) -> Iterator[httpx.Client]:
    with real.client(**ADMIN) as client:
        yield client


def test_every_route_is_shown_and_no_other() -> None:
    families = (system, completions, chat, messages, responses, embeddings, tokenize, admin, debug, pool, openapi)
    routes = [route for family in families for route in family.endpoints.routes]
    served = {
        (method, route.path.replace(":path", "")) for route in routes for method in (route.methods or set()) - {"HEAD"}
    }
    assert {(route.method.upper(), route.path) for route in ROUTES} == served


def test_all_but_health_needs_the_key() -> None:
    shown = document(ServerSettings("m", api_keys=("k",)))["paths"]
    open_paths = {path for path, methods in shown.items() for each in methods.values() if "security" not in each}
    assert open_paths == {"/health"}
    assert "security" not in json.dumps(document(ServerSettings("m"))["paths"])


def test_limits_are_those_of_the_server() -> None:
    limits = ServerLimits(SamplingLimits(n=7, stops=3), messages=9, tools=2)
    shown = document(ServerSettings("name", limits=limits))["components"]["schemas"]
    fields = shown["ChatRequest"]["properties"]
    assert fields["n"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 7}
    assert fields["stop"]["anyOf"][0]["anyOf"][1]["maxItems"] == 3
    assert (fields["messages"]["anyOf"][0]["maxItems"], fields["tools"]["anyOf"][0]["maxItems"]) == (9, 2)
    assert fields["model"]["anyOf"][0] == {"enum": ["name"]}
    assert shown["ChatRequest"]["oneOf"][0]["required"] == ["messages"]
    assert fields["logprobs"]["anyOf"][0] == {"type": "boolean"}
    assert shown["CompletionRequest"]["properties"]["logprobs"]["anyOf"][0]["maximum"] == 20


def test_what_is_refused_by_its_bounds_is_refused_by_the_server(asking: httpx.Client) -> None:
    """And what they allow is not, as far as one field can tell."""
    shown = asking.get("/openapi.json").json()
    validator = validator_for({"$ref": "#/components/schemas/CompletionRequest"} | {"components": shown["components"]})
    values: dict[str, list[Any]] = {
        "n": [0, 1, 4, 5], "temperature": [-0.1, 0, 100, 100.5], "top_p": [0, 0.5, 1, 1.5], "top_k": [-2, -1, 0],
        "min_p": [-0.1, 0, 1, 1.1], "seed": [-1, 0, 2**63 - 1], "presence_penalty": [-2.5, -2, 2, 2.5],
        "frequency_penalty": [-2.5, 2], "repetition_penalty": [0, 0.1, 100, 101], "logprobs": [-1, 0, 20, 21],
        "stop": ["", "x", "x" * 256, "x" * 257, [], ["x"] * 16, ["x"] * 17, [""]], "max_tokens": [0, 1],
        "stop_token_ids": [[], [1] * 128, [1] * 129, [-1]], "bad_words": [["x"] * 128, ["x"] * 129, [""]],
        "logit_bias": [{}, {"5": 100}, {"5": 101}, {"x": 1}], "allowed_token_ids": [[], [1]], "min_tokens": [-1, 0],
        "cache_salt": ["", "x", "x" * 1024, "x" * 1025], "truncate_prompt_tokens": [-2, -1, 0, 1],
        "prompt": [[], [5], {}, [[]]],
        "prompt_logprobs": [-1, 0, 20, 21], "retention_priority": [-1, 0, 100, 101], "slo_ttft_ms": [0, 1e6],
        "request_timeout_ms": [-1, 1e6], "model": ["other"], "stream": ["yes"], "early_stopping": ["soon"],
    }  # fmt: skip
    for name, value in ((name, value) for name, tried in values.items() for value in tried):
        body = COMPLETION | {name: value}
        answer = asking.post("/v1/completions", json=body)
        is_valid = validator.is_valid(body)
        assert (answer.status_code == 200) == is_valid, (name, value, is_valid, answer.text[:300])
        assert is_valid or answer.json()["error"]["param"] == name


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("logprobs", [False, True])
def test_answers_have_their_shapes(asking: httpx.Client, options: dict[str, Any], logprobs: bool) -> None:
    chat_extra = {"logprobs": True, "top_logprobs": 2} if logprobs and "use_beam_search" not in options else {}
    extra = {"logprobs": 2} if chat_extra else {}
    whole = {name: value for name, value in options.items() if name != "stream_options"}
    for path, fields, kind, chunk_kind in (
        ("/v1/completions", COMPLETION | extra, shapes.CompletionBody, shapes.CompletionChunk),
        ("/v1/chat/completions", CHAT | chat_extra, shapes.ChatBody, shapes.ChatChunk),
    ):
        answer = asking.post(path, json=fields | whole | ({"prompt_logprobs": 1} if extra else {}))
        assert answer.status_code == 200, answer.text
        msgspec.json.decode(answer.content, type=kind)
        if "use_beam_search" in options:  # its choices come whole
            continue
        streamed = asking.post(path, json=fields | options | {"stream": True})
        events = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line.startswith("data: ")]
        assert events.pop() == "[DONE]"
        for event in events:
            msgspec.json.decode(event, type=chunk_kind)


def test_other_answers_have_their_shapes(asking: httpx.Client) -> None:
    kinds: dict[tuple[str, str], Any] = {
        ("GET", "/v1/models"): shapes.ModelList,
        ("GET", "/load"): shapes.Load,
        ("GET", "/version"): shapes.Version,
        ("GET", "/admin/pins"): shapes.PinList,
        ("GET", "/debug/requests"): shapes.TracedRequests,
        ("GET", "/nowhere"): shapes.ErrorBody,
    }
    for (method, path), kind in kinds.items():
        msgspec.json.decode(asking.request(method, path).content, type=kind)
    tokens = asking.post("/tokenize", json={"prompt": "hello", "return_token_strs": True}).content
    token_ids = msgspec.json.decode(tokens, type=shapes.Tokens).tokens
    msgspec.json.decode(asking.post("/detokenize", json={"tokens": token_ids}).content, type=shapes.DetokenizedText)
    made = msgspec.json.decode(
        asking.post("/admin/pins", json={"prompt": list(range(5, 40)), "ttl": 60}).content, type=shapes.Pin
    )
    pins = msgspec.json.decode(asking.get("/admin/pins").content, type=shapes.PinList)
    assert [pin.id for pin in pins.data] == [made.id]
    msgspec.json.decode(asking.delete(f"/admin/pins/{made.id}").content, type=shapes.DeletedPin)
    asking.post("/v1/completions", json=COMPLETION, headers={"X-Request-Id": "shaped"})
    history = msgspec.json.decode(asking.get("/debug/requests/shaped").content, type=shapes.RequestHistory)
    assert len(history.requests) == 1


def test_anthropic_answers_have_their_shapes(asking: httpx.Client) -> None:
    fields = {"max_tokens": 6, "messages": CHAT["messages"]}
    kinds: list[tuple[str, dict[str, Any], Any]] = [
        ("", fields, MessageBody),
        ("/count_tokens", fields, CountedTokens),
        ("", {}, MessageErrorBody),
        ("/nowhere", {}, MessageErrorBody),
    ]
    for path, body, kind in kinds:
        msgspec.json.decode(asking.post(f"/v1/messages{path}", json=body).content, type=kind)


def test_responses_have_their_shape(asking: httpx.Client) -> None:
    answer = asking.post("/v1/responses", json={"input": "hi", "max_output_tokens": 6})
    msgspec.json.decode(answer.content, type=ResponseBody)
