"""GET /openapi.json: what is served, in OpenAPI 3.1; requests as they are decoded, answers as their shapes."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo import __version__
from octavo.engine.traces import MAX_REQUESTS
from octavo.server import answer_shapes as shapes
from octavo.server.admin import PinRequest
from octavo.server.answers import json_response
from octavo.server.chat.request import ChatRequest
from octavo.server.completions import CompletionRequest
from octavo.server.context import server_state
from octavo.server.embeddings import EmbeddingRequest
from octavo.server.endpoints import Endpoints
from octavo.server.limits import ServerLimits
from octavo.server.messages import shapes as anthropic
from octavo.server.messages.bounds import message_bounds, prompt_bounds
from octavo.server.messages.request import CountRequest, MessagesRequest
from octavo.server.queueing.timing import TIMEOUT_HEADER, TTFT_HEADER
from octavo.server.responses.bounds import response_bounds
from octavo.server.responses.request import ResponsesRequest
from octavo.server.responses.shapes import ResponseBody
from octavo.server.schema_bounds import ONE_PROMPT, bounded, bounds, many_prompts
from octavo.server.settings import ServerSettings
from octavo.server.system import PROBES
from octavo.server.tokenize import DetokenizeRequest, TokenizeRequest
from octavo.server.watching.pool_shapes import PoolBlock, PoolBody, PoolRequest

endpoints = Endpoints()

JSON = "application/json"
_REFERENCE = "#/components/schemas/{name}"
_ERRORS = {
    400: "It cannot be served as it is; `param` names the field.",
    401: "The key is missing or wrong.",
    403: "The key does not allow it.",
    404: "No such model, or nothing of this id.",
    409: "The pin could not be made.",
    413: "The body is too large.",
    429: "The queue is full or too slow, or the tenant has used up its rate; `Retry-After` says when to try again.",
    500: "The engine failed on this request.",
    503: "Loading, draining, starting again, or the engine is gone.",
    504: "The time for the whole answer is over.",
}
_GENERATING = (400, 401, 403, 404, 413, 429, 500, 503, 504)
_WITH_BODY = (400, 401, 404, 413, 429, 503)


class Parameter(NamedTuple):
    """``place``: path, query or header."""

    name: str
    place: str
    schema: dict[str, Any]


_TIMES = tuple(
    Parameter(name, "header", {"type": "string", "pattern": r"^[1-9][0-9]{0,11}(\.[0-9]{1,3})?$"})
    for name in (TTFT_HEADER, TIMEOUT_HEADER)
)


class Route(NamedTuple):
    """``answer``: a shape, a media type of texts, or None for an empty body. ``streams``: as server-sent events too."""

    method: str
    path: str
    summary: str
    body: type[msgspec.Struct] | None
    answer: type[msgspec.Struct] | str | None
    errors: tuple[int, ...]
    parameters: tuple[Parameter, ...] = ()
    streams: bool = False
    error: type[msgspec.Struct] = shapes.ErrorBody


_PROBE = (Parameter("probe", "query", {"enum": list(PROBES), "default": PROBES[0]}),)
_LIMIT = (Parameter("limit", "query", {"type": "integer", "minimum": 1, "maximum": MAX_REQUESTS, "default": 100}),)
_PIN_ID = (Parameter("pin_id", "path", {"type": "string", "minLength": 1}),)
_REQUEST_ID = (Parameter("request_id", "path", {"type": "string", "minLength": 1}),)
_BLOCK_ID = (Parameter("block_id", "path", {"type": "integer", "minimum": 0}),)
_AFTER = (Parameter("after", "query", {"type": "integer", "minimum": 0, "default": 0}),)
_WATCHED = (400, 401, 403, 503)
_FOUND = (401, 403, 404, 503)
_POSITIVE = {"type": "integer", "minimum": 1}

ROUTES = (
    Route(
        "post",
        "/v1/completions",
        "Continue one or more prompts, each n times.",
        CompletionRequest,
        shapes.CompletionBody,
        _GENERATING,
        _TIMES,
        streams=True,
    ),
    Route(
        "post",
        "/v1/chat/completions",
        "Answer a conversation.",
        ChatRequest,
        shapes.ChatBody,
        _GENERATING,
        _TIMES,
        streams=True,
    ),
    Route(
        "post",
        "/v1/messages",
        "Answer a conversation, in Anthropic's form.",
        MessagesRequest,
        anthropic.MessageBody,
        _GENERATING,
        _TIMES,
        streams=True,
        error=anthropic.MessageErrorBody,
    ),
    Route(
        "post",
        "/v1/messages/count_tokens",
        "Count the tokens of such a conversation.",
        CountRequest,
        anthropic.CountedTokens,
        _WITH_BODY,
        error=anthropic.MessageErrorBody,
    ),
    Route(
        "post",
        "/v1/responses",
        "Answer a text or a conversation; nothing is kept.",
        ResponsesRequest,
        ResponseBody,
        _GENERATING,
        _TIMES,
        streams=True,
    ),
    Route(
        "post",
        "/v1/embeddings",
        "A vector of each input.",
        EmbeddingRequest,
        shapes.EmbeddingList,
        _GENERATING,
        _TIMES,
    ),
    Route("post", "/tokenize", "Token ids of a text or conversation.", TokenizeRequest, shapes.Tokens, _WITH_BODY),
    Route("post", "/detokenize", "Text of token ids.", DetokenizeRequest, shapes.DetokenizedText, _WITH_BODY),
    Route("get", "/tokenizer_info", "Special tokens and chat template.", None, shapes.TokenizerInfo, (401, 404, 503)),
    Route("get", "/v1/models", "The model that is served.", None, shapes.ModelList, (401, 503)),
    Route("get", "/health", "Is it ready, or alive?", None, None, (400, 503), _PROBE),
    Route("get", "/ping", "As /health, with the key.", None, None, (400, 401, 503), _PROBE),
    Route("post", "/ping", "As /health, with the key.", None, None, (400, 401, 429, 503), _PROBE),
    Route("get", "/load", "Requests that have not ended.", None, shapes.Load, (401,)),
    Route("get", "/version", "The version.", None, shapes.Version, (401,)),
    Route("get", "/metrics", "Prometheus series.", None, "text/plain", (401,)),
    Route("get", "/openapi.json", "This document.", None, JSON, (401,)),
    Route("get", "/admin/pins", "The pins there are.", None, shapes.PinList, (401, 403, 503)),
    Route("post", "/admin/pins", "Pin a prefix, computed first.", PinRequest, shapes.Pin, (*_GENERATING, 409)),
    Route("delete", "/admin/pins/{pin_id}", "End a pin.", None, shapes.DeletedPin, (401, 403, 404, 503), _PIN_ID),
    Route("get", "/debug/requests", "What came last.", None, shapes.TracedRequests, (400, 401, 403, 503), _LIMIT),
    Route(
        "get",
        "/debug/requests/{request_id}",
        "What was decided about a request.",
        None,
        shapes.RequestHistory,
        (401, 403, 404, 503),
        _REQUEST_ID,
    ),
    Route("get", "/debug/pool", "The pool's blocks and who waits.", None, PoolBody, _WATCHED, _AFTER),
    Route("get", "/debug/pool/blocks/{block_id}", "What is in a block.", None, PoolBlock, _FOUND, _BLOCK_ID),
    Route(
        "get",
        "/debug/pool/requests/{request_id}",
        "The block tables of a request.",
        None,
        PoolRequest,
        (401, 403, 503),
        _REQUEST_ID,
    ),
)


@endpoints.get("/openapi.json")
async def openapi(request: Request) -> Response:
    return json_response(document(server_state(request).settings))


def document(settings: ServerSettings) -> dict[str, Any]:
    """What a server with these settings serves. Fields of requests that are not named are ignored (spec D27)."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method] = _operation(route, settings)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": _schemas(settings.limits, settings.served_model_name),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas(limits: ServerLimits, model: str) -> dict[str, Any]:
    requests = [route.body for route in ROUTES if route.body is not None]
    answers = [route.answer for route in ROUTES if isinstance(route.answer, type)]
    errors = [route.error for route in ROUTES]
    kinds = [*requests, *answers, *errors, shapes.CompletionChunk, shapes.ChatChunk]
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    known = bounds(limits, model)
    own: Mapping[type, dict[str, Any]] = {
        CompletionRequest: {"prompt": many_prompts(limits), "logprobs": known["top_logprobs"]},
        PinRequest: {"prompt": ONE_PROMPT},
        EmbeddingRequest: {"input": many_prompts(limits), "dimensions": _POSITIVE},
        CountRequest: prompt_bounds(limits),
        MessagesRequest: message_bounds(limits),
        ResponsesRequest: response_bounds(limits),
        DetokenizeRequest: {"tokens": known["allowed_token_ids"] | {"minItems": 0}},
    }
    for kind in requests:
        schemas[kind.__name__] = bounded(schemas[kind.__name__], known | own.get(kind, {}))
    return schemas


def _operation(route: Route, settings: ServerSettings) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": route.summary, "responses": _responses(route)}
    if route.parameters:
        operation["parameters"] = [
            {"name": each.name, "in": each.place, "required": each.place == "path", "schema": each.schema}
            for each in route.parameters
        ]
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": _reference(route.body)}}}
    if settings.needs_key and route.path != "/health":
        operation["security"] = [{"key": []}]
    return operation


def _responses(route: Route) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "Done."}
    if isinstance(route.answer, str):
        answer["content"] = {route.answer: {"schema": {} if route.answer == JSON else {"type": "string"}}}
    elif route.answer is not None:
        answer["content"] = {JSON: {"schema": _reference(route.answer)}}
    if route.streams:
        answer["content"]["text/event-stream"] = {}  # OpenAPI 3.1 has no schema for a stream of events
    error = {JSON: {"schema": _reference(route.error)}}
    errors = {str(status): {"description": _ERRORS[status], "content": error} for status in route.errors}
    return {"200": answer} | errors


def _reference(kind: type) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(name=kind.__name__)}
