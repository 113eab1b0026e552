"""POST /tokenize and /detokenize, GET /tokenizer_info, in vLLM's shapes."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.core.errors import InvalidRequestError
from octavo.core.token_ids import check_token_ids
from octavo.server.answers import json_response
from octavo.server.body import read_request_body
from octavo.server.chat.tool_choice import shown_tools
from octavo.server.chat.tool_messages import with_parsed_arguments
from octavo.server.context import check_model, server_state
from octavo.server.endpoints import Endpoints
from octavo.server.errors import ApiError
from octavo.server.prompts import Prompt, check_messages, encode_messages, encode_text, in_text_thread, template_options
from octavo.server.sampling import Int64
from octavo.server.state import ServerState

endpoints = Endpoints()


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """A ``prompt``, or ``messages`` as chat takes them."""

    model: str | None = None
    messages: list[Any] | None = None
    tools: list[Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    tokens: list[Int64]
    model: str | None = None


@endpoints.post("/tokenize")
async def tokenize(request: Request) -> Response:
    state = server_state(request)
    state.require_ready()
    fields = await read_request_body(request, TokenizeRequest, state.settings.limits)
    check_model(state, fields.model)
    token_ids = (await _prompt(state, fields)).token_ids
    body: dict[str, Any] = {
        "tokens": token_ids,
        "count": len(token_ids),
        "max_model_len": state.engine.limits.max_model_len,
        "token_strs": None,
    }
    if fields.return_token_strs:
        token_bytes = state.tokenizer.token_bytes
        body["token_strs"] = [token_bytes(token_id).decode(errors="replace") for token_id in token_ids]
    return json_response(body)


async def _prompt(state: ServerState, fields: TokenizeRequest) -> Prompt:
    if (fields.prompt is None) == (fields.messages is None):
        raise InvalidRequestError("Either prompt or messages is needed, not both.", "prompt")
    if fields.tools and fields.messages is None:
        raise InvalidRequestError("tools belong to messages; a prompt has none.", "tools")
    if fields.messages is not None:
        check_messages(state, fields.messages)
        tools = shown_tools(state, fields.tools or [])
        return await encode_messages(state, with_parsed_arguments(fields.messages), template_options(fields, tools))
    return await encode_text(state, fields.prompt or "", fields.add_special_tokens is not False)


@endpoints.post("/detokenize")
async def detokenize(request: Request) -> Response:
    state = server_state(request)
    state.require_ready()
    fields = await read_request_body(request, DetokenizeRequest, state.settings.limits)
    check_model(state, fields.model)
    check_token_ids("tokens", fields.tokens, state.engine.limits.vocab_size)
    text = await in_text_thread(state, lambda: state.tokenizer.decode(fields.tokens, skip_special_tokens=False))
    return json_response({"prompt": text})


@endpoints.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> Response:
    """What clients need that make prompts of conversations themselves.

    Off unless asked for, as vLLM has it: lm-eval, where it finds this route and is given a tokenizer as well, puts a
    BOS before what it measures.
    """
    state = server_state(request)
    if not state.settings.enable_tokenizer_info_endpoint:
        raise ApiError(
            404, "GET /tokenizer_info is off; serve with --enable-tokenizer-info-endpoint.", code="not_enabled"
        )
    state.require_ready()
    tokenizer = state.tokenizer

    def text(token_id: int) -> str:
        return tokenizer.token_bytes(token_id).decode(errors="replace")

    ends = [text(token_id) for token_id in sorted(tokenizer.eos_token_ids)]
    body = {
        "tokenizer_class": type(tokenizer).__name__,
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": state.engine.limits.max_model_len,
        "bos_token": None if tokenizer.bos_token_id is None else text(tokenizer.bos_token_id),
        "eos_token": ends[0] if ends else None,
        "eos_tokens": ends,
        "special_tokens": [text(token_id) for token_id in sorted(tokenizer.special_token_ids)],
        "chat_template": tokenizer.template_source(for_tools=False),
    }
    return json_response(body)
