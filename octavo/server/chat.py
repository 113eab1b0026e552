"""POST /v1/chat/completions."""

import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from fastapi import APIRouter, Request, Response

from octavo.core.errors import InvalidRequestError
from octavo.core.pin_types import PinWish
from octavo.core.sampling_params import SamplingParams
from octavo.core.structured import Constraint, StructuredLimits, Thinking, as_constraint
from octavo.loading.system_prefix import num_system_tokens
from octavo.server.access.auth import Role, allowance_of, role_of, tenant_of
from octavo.server.answers import answered
from octavo.server.beams import beam_search_params
from octavo.server.body import read_request_body
from octavo.server.chat_answer import RESPONSE_ROLE, ChatAnswer
from octavo.server.context import check_model, server_state
from octavo.server.dialect import new_call_id
from octavo.server.forced_calls import forced_constraint, forced_syntax
from octavo.server.generation import Generation
from octavo.server.keeping import cache_marks, marked_pins, prompt_pins, retention_of
from octavo.server.prompts import (
    Prompt,
    check_length,
    check_messages,
    encode_messages,
    fewest_message_tokens,
    in_text_thread,
    message_text,
    template_options,
)
from octavo.server.queueing.promises import Share
from octavo.server.queueing.timing import timing_of
from octavo.server.reply import ReplyFormat, ToolFormat
from octavo.server.sampling import Int64, SamplingFields, refuse_unsupported, sampling_params
from octavo.server.state import ServerState
from octavo.server.structured import asked_constraint, constraint_field
from octavo.server.tool_choice import ToolUse, tool_use
from octavo.server.tool_messages import with_parsed_arguments
from octavo.server.truncation import num_kept
from octavo.server.visit import visit_of

router = APIRouter()

Messages = Sequence[Mapping[str, Any]]

NUM_END_TOKENS = 16
"""Of the prompt, to see whether it ends inside the thinking; an opening mark and blanks have fewer."""


class ChatRequest(SamplingFields, kw_only=True):
    messages: list[Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    max_completion_tokens: Int64 | None = None
    logprobs: bool | None = None
    top_logprobs: Int64 | None = None
    cache_control: Any = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: Any = None


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    state = server_state(request)
    state.require_ready()
    fields = await read_request_body(request, ChatRequest, state.settings.limits)
    async with opened_chat(request, state, fields, "chatcmpl") as chat:
        answer = ChatAnswer(state, fields, chat.generation, chat.reply_format, _echoed_text(fields, chat.messages))
        return await answered(request, answer, fields.stream)


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
    constrained_by = "tools" if tools.is_forced else constraint_field(fields)
    await state.constraints.check(params.constraint, constrained_by, timing, tenant_of(request))
    share = Share(params.n, fewest_message_tokens(state, num_bytes, truncate))
    with state.queue.enter(share, "messages", timing.patience) as place:
        prompt = await _prompt(state, messages, options, truncate)
        place.settle(params.n, [len(prompt.token_ids)])
        reply_format = _reply_format(state, fields, tools, messages, prompt, params.constraint is not None)
        if params.constraint is not None:
            params = replace(params, thinking=_thinking(reply_format))
        generation = Generation(
            f"{id_prefix}-{uuid.uuid4().hex}",
            visit_of(request),
            [prompt],
            params,
            _max_tokens(fields) is None,
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


def _reply_format(
    state: ServerState, fields: ChatRequest, tools: ToolUse, messages: Messages, prompt: Prompt, has_form: bool
) -> ReplyFormat:
    """What the answer is to be read for. ``has_form``: a text that has to be of a form is what was asked for, whatever
    it looks like; before it there may be thinking, as far as that is not over."""
    marks = state.dialect.reasoning
    tool_format = _tool_format(state, fields, tools) if tools.is_forced or not has_form else None
    if marks is None:
        return ReplyFormat(tool_format)
    if fields.continue_final_message:
        begun = message_text(messages[-1])
        is_open = marks.open_within(begun)
        is_over = bool(begun.strip()) and not is_open
    else:
        end = state.tokenizer.decode(prompt.token_ids[-NUM_END_TOKENS:], False)  # so few take less time than a thread
        is_open, is_over = marks.open_after(end), marks.closed_after(end)
    return ReplyFormat(tool_format, None if has_form and is_over else marks, is_open)


def _thinking(reply_format: ReplyFormat) -> Thinking | None:
    """What may come before the form of an answer."""
    marks = reply_format.reasoning
    return None if marks is None else Thinking(marks.open, marks.close, reply_format.reasoning_is_open)


def _tool_format(state: ServerState, fields: ChatRequest, tools: ToolUse) -> ToolFormat | None:
    known, is_parallel = state.dialect.tools, fields.parallel_tool_calls is not False
    make_id = new_call_id if known is None else known.make_id
    if tools.is_forced:
        return ToolFormat(forced_syntax(tools), tools.names, make_id, is_parallel)
    if known is None or tools.mode == "none":
        return None
    return ToolFormat(known.syntax, tools.parameters, make_id, is_parallel)


def _echoed_text(fields: ChatRequest, messages: Messages) -> str:
    """With ``echo`` and a last message of the assistant's, the answer starts with that message's text."""
    return message_text(messages[-1]) if fields.echo and messages[-1].get("role") == RESPONSE_ROLE else ""


def _refuse(fields: ChatRequest, tools: ToolUse) -> None:
    if tools.is_forced and fields.use_beam_search:
        raise InvalidRequestError("tool_choice cannot force a call with use_beam_search.", "tool_choice")
    if fields.functions not in (None, []):
        raise InvalidRequestError("functions are not supported; send tools.", "functions")


def _max_tokens(fields: ChatRequest) -> int | None:
    """None means the room left (spec D28)."""
    if fields.max_completion_tokens is not None:
        return fields.max_completion_tokens
    return fields.max_tokens


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


def _constraint(fields: ChatRequest, tools: ToolUse, limits: StructuredLimits) -> Constraint | None:
    """What the text must be, whether its form or a call is asked for."""
    asked = asked_constraint(fields, limits)
    forced = as_constraint(forced_constraint(tools, fields.parallel_tool_calls is not False), limits, "tools")
    if asked is not None and forced is not None:
        name = constraint_field(fields)
        raise InvalidRequestError(f"{name} cannot be used where tool_choice forces a call; leave it out.", name)
    return asked or forced


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
    constraint = _constraint(fields, tools, limits.sampling.structured)
    params = sampling_params(fields, limits, max_tokens=_max_tokens(fields), logprobs=logprobs, constraint=constraint)
    params.check_vocabulary(state.engine.limits.vocab_size)
    dialect = state.dialect
    shown = dialect.reasoning_token_ids + (dialect.tool_token_ids if tools.mode == "auto" else ())
    return replace(params, shown_token_ids=shown or None)
