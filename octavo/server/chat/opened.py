"""A conversation that is let in: checked, its prompt made, and in the queue."""

import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from starlette.requests import Request

from octavo.core.errors import InvalidRequestError
from octavo.core.pin_types import PinWish
from octavo.core.sampling_params import SamplingParams
from octavo.loading.system_prefix import num_system_tokens
from octavo.server.access.auth import Role, allowance_of, role_of, tenant_of
from octavo.server.beams import beam_search_params
from octavo.server.chat.form import check_text, text_constraint
from octavo.server.chat.reading import Messages, reply_format_of, thinking_before
from octavo.server.chat.request import ChatRequest
from octavo.server.chat.tool_choice import ToolUse, tool_use
from octavo.server.chat.tool_messages import with_parsed_arguments
from octavo.server.context import check_model
from octavo.server.generation import Generation
from octavo.server.keeping import cache_marks, marked_pins, prompt_pins, retention_of
from octavo.server.prompts import (
    Prompt,
    check_length,
    check_messages,
    encode_messages,
    fewest_message_tokens,
    in_text_thread,
    template_options,
)
from octavo.server.queueing.promises import Share
from octavo.server.queueing.timing import timing_of
from octavo.server.reply import ReplyFormat
from octavo.server.sampling import refuse_unsupported, sampling_params
from octavo.server.state import ServerState
from octavo.server.truncation import num_kept
from octavo.server.visit import visit_of


class Chat(NamedTuple):
    """A conversation that is let in: what is to be generated, what its text is read for, the messages as checked."""

    generation: Generation
    reply_format: ReplyFormat
    messages: Messages


@asynccontextmanager
async def opened_chat(
    request: Request, state: ServerState, fields: ChatRequest, id_prefix: str
) -> AsyncGenerator[Chat, None]:
    """A conversation, checked and in the queue. Every endpoint that answers one comes through here.

    ``id_prefix``: of the answer's id. Raises as ``create_chat_completion`` answers, naming fields of ``ChatRequest``.
    """
    check_model(state, fields.model)
    tools = tool_use(state, fields)
    _refuse(fields, tools)
    params = _params(state, fields, tools)
    beam_search = beam_search_params(fields, params)
    role = role_of(request)
    truncate = num_kept(fields.truncate_prompt_tokens, state.engine.limits.max_model_len, params.max_tokens)
    num_bytes = check_messages(state, fields.messages or [])
    messages = with_parsed_arguments(fields.messages or [])
    options = template_options(fields, tools.tools)
    timing = timing_of(request, fields, state.settings)
    await check_text(state, fields, params.constraint, timing, tenant_of(request))
    share = Share(params.n, fewest_message_tokens(state, num_bytes, truncate))
    with state.queue.enter(share, "messages", timing.patience) as place:
        prompt = await _prompt(state, messages, options, truncate)
        place.settle(params.n, [len(prompt.token_ids)])
        reply_format = reply_format_of(state, fields, tools, messages, prompt, params.constraint is not None)
        if params.constraint is not None:
            params = replace(params, thinking=thinking_before(reply_format))
        generation = Generation(
            f"{id_prefix}-{uuid.uuid4().hex}",
            visit_of(request),
            [prompt],
            params,
            fields.most_tokens is None,
            place,
            timing,
            priority=fields.priority or 0,
            cache_salt=fields.cache_salt,
            num_open_tokens=await _num_open_tokens(state, fields, messages, prompt),
            beam_search=beam_search,
            pins=[await _pins(state, fields, role, messages, options, prompt)],
            retention=retention_of(fields, role),
            tenant=tenant_of(request),
            allowance=allowance_of(request),
            param="messages",
        )
        yield Chat(generation, reply_format, messages)


async def _prompt(state: ServerState, messages: Messages, options: Mapping[str, Any], truncate: int | None) -> Prompt:
    prompt = await encode_messages(state, messages, options)
    if truncate is not None:
        prompt = Prompt(prompt.token_ids[-truncate:])
    check_length(state, prompt.token_ids, "messages")
    return prompt


def _refuse(fields: ChatRequest, tools: ToolUse) -> None:
    if tools.is_forced and fields.use_beam_search:
        raise InvalidRequestError("tool_choice cannot force a call with use_beam_search.", "tool_choice")
    if fields.functions not in (None, []):
        raise InvalidRequestError("functions are not supported; send tools.", "functions")


async def _num_open_tokens(state: ServerState, fields: ChatRequest, messages: Messages, prompt: Prompt) -> int:
    """The number itself, or "system" counted."""
    asked = fields.cache_open_tokens
    if asked != "system":
        return asked or 0
    return await in_text_thread(state, lambda: num_system_tokens(state.tokenizer, messages, prompt.token_ids))


async def _pins(
    state: ServerState,
    fields: ChatRequest,
    role: Role,
    messages: Messages,
    options: Mapping[str, Any],
    prompt: Prompt,
) -> tuple[PinWish, ...]:
    """What ``pin_prefix`` asks for, and, of who may pin, the marks."""
    marks = cache_marks(messages, fields.tools, fields.cache_control)
    wishes = prompt_pins(fields, role, state.settings.limits, [prompt])
    if marks and role >= Role.PINNER and fields.truncate_prompt_tokens is None:
        wishes += await marked_pins(state, messages, marks, prompt.token_ids, options)
    return tuple(wishes)


def _params(state: ServerState, fields: ChatRequest, tools: ToolUse) -> SamplingParams:
    """Control tokens that mark thinking or calls stay in the text: they are what it is understood by."""
    limits = state.settings.limits
    refuse_unsupported(fields, limits)
    if fields.top_logprobs is not None:
        if not fields.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs to be true.", "top_logprobs")
        if not 0 <= fields.top_logprobs <= limits.sampling.logprobs:
            raise InvalidRequestError(
                f"top_logprobs must be between 0 and {limits.sampling.logprobs}, got {fields.top_logprobs}.",
                "top_logprobs",
            )
    logprobs = (fields.top_logprobs or 0) if fields.logprobs else None
    constraint = text_constraint(state, fields, tools)
    params = sampling_params(fields, limits, max_tokens=fields.most_tokens, logprobs=logprobs, constraint=constraint)
    params.check_vocabulary(state.engine.limits.vocab_size)
    dialect = state.dialect
    shown = dialect.reasoning_token_ids + (dialect.tool_token_ids if tools.mode == "auto" else ())
    return replace(params, shown_token_ids=shown or None)
