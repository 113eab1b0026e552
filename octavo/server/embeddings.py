"""POST /v1/embeddings: one vector an input, of the served model's last hidden states."""

import base64
import struct
import uuid
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.asking import EMBEDDING_PARAMS
from octavo.core.errors import InvalidRequestError
from octavo.engine.intake import check_salt
from octavo.engine.messages import OutputDelta
from octavo.outputs import unit
from octavo.server.access.auth import allowance_of, tenant_of
from octavo.server.answers import json_response, unless_gone
from octavo.server.body import read_request_body
from octavo.server.context import check_model, server_state
from octavo.server.endpoints import Endpoints
from octavo.server.errors import fields_named
from octavo.server.generation import Generation, collect
from octavo.server.prompts import encode_prompts, fewest_tokens, in_text_thread, split_prompts
from octavo.server.queueing.promises import Share
from octavo.server.queueing.timing import timing_of
from octavo.server.sampling import Int64, SamplingFields
from octavo.server.state import ServerState
from octavo.server.truncation import check_truncation, num_kept
from octavo.server.visit import visit_of

endpoints = Endpoints()

FIELD_NAMES = {"prompt": "input", "n": "input"}


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """OpenAI's fields, and vLLM's ``add_special_tokens``, ``truncate_prompt_tokens``, ``priority``, ``cache_salt``."""

    input: Any = None
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Int64 | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Int64 | None = None
    priority: Int64 | None = None
    cache_salt: str | None = None


@endpoints.post("/v1/embeddings")
async def create_embeddings(request: Request) -> Response:
    """A vector of each input, of length 1."""
    state = server_state(request)
    state.require_ready()
    fields = await read_request_body(request, EmbeddingRequest, state.settings.limits)
    check_model(state, fields.model)
    _check(state, fields)
    with fields_named(FIELD_NAMES):
        generation, choices = await _vectors(request, state, fields)
    body = await in_text_thread(state, lambda: _body(state, fields, choices))
    num_tokens = sum(len(prompt.token_ids) for prompt in generation.prompts)
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return json_response(body | {"usage": usage})


async def _vectors(
    request: Request, state: ServerState, fields: EmbeddingRequest
) -> tuple[Generation, list[OutputDelta]]:
    items = split_prompts(state, fields.input, 1)
    timing = timing_of(request, SamplingFields(), state.settings)
    truncate = num_kept(fields.truncate_prompt_tokens, state.engine.limits.max_model_len, 1)
    with state.queue.enter(Share(len(items), fewest_tokens(state, items, truncate)), "input", timing.patience) as place:
        prompts = await encode_prompts(
            state, items, add_special_tokens=fields.add_special_tokens is not False, truncate=truncate
        )
        place.settle(1, [len(prompt.token_ids) for prompt in prompts])
        generation = Generation(
            f"embd-{uuid.uuid4().hex}",
            visit_of(request),
            prompts,
            EMBEDDING_PARAMS,
            clamp_max_tokens=False,
            place=place,
            timing=timing,
            priority=fields.priority or 0,
            cache_salt=fields.cache_salt,
            tenant=tenant_of(request),
            allowance=allowance_of(request),
            param="input",
            pooling=state.settings.pooling,
        )
        return generation, await unless_gone(request.receive, collect(state, generation))


def _check(state: ServerState, fields: EmbeddingRequest) -> None:
    check_salt(fields.cache_salt, state.settings.limits.sampling.cache_salt_characters)
    check_truncation(fields.truncate_prompt_tokens)
    if fields.dimensions is not None and fields.dimensions < 1:
        raise InvalidRequestError(f"dimensions must be at least 1, got {fields.dimensions}.", "dimensions")


def _body(state: ServerState, fields: EmbeddingRequest, choices: Sequence[OutputDelta]) -> dict[str, Any]:
    data = [
        {"object": "embedding", "index": index, "embedding": _shown(fields, choice.embedding or [])}
        for index, choice in enumerate(choices)
    ]
    return {"object": "list", "data": data, "model": state.settings.served_model_name}


def _shown(fields: EmbeddingRequest, vector: Sequence[float]) -> Any:
    """Its first ``dimensions`` numbers, of length 1 again; in base64 as fp32, little-endian."""
    size = fields.dimensions or len(vector)
    if size > len(vector):
        raise InvalidRequestError(
            f"dimensions must be at most {len(vector)}, those of the model, got {size}.", "dimensions"
        )
    numbers = unit(vector[:size])
    if fields.encoding_format != "base64":
        return numbers
    return base64.b64encode(struct.pack(f"<{size}f", *numbers)).decode()
