"""POST /v1/chat/completions."""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response

from octavo.core.errors import InvalidRequestError
from octavo.core.pin_types import PinWish
from octavo.core.sampling_params import SamplingParams
from octavo.engine.messages import OutputDelta
from octavo.loading.system_prefix import num_system_tokens
from octavo.server.answers import Event, event_stream, json_response, unless_gone
from octavo.server.auth import Role, role_of, tenant_of, trace_id_of
from octavo.server.beams import beam_search_params
from octavo.server.body import read_request_body
from octavo.server.context import check_model, server_state
from octavo.server.generation import Generation, collect, run
from octavo.server.keeping import cache_marks, marked_pins, prompt_pins, retention_of
from octavo.server.logprobs import TokenWriter, chat_logprobs, prompt_logprobs
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
from octavo.server.queue import Share
from octavo.server.sampling import Int64, SamplingFields, refuse_unsupported, sampling_params
from octavo.server.state import ServerState
from octavo.server.timing import timing_of

router = APIRouter()

RESPONSE_ROLE = "assistant"


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
    functions: Any = None


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    state = server_state(request)
    state.require_ready()
    fields = await read_request_body(request, ChatRequest, state.settings.limits)
    check_model(state, fields.model)
    _refuse(fields)
    params = _params(state, fields)
    beam_search = beam_search_params(fields, params)
    role = role_of(request)
    messages, truncate = fields.messages or [], fields.truncate_prompt_tokens
    num_bytes = check_messages(state, messages)
    timing = timing_of(request, fields, state.settings)
    share = Share(params.n, fewest_message_tokens(state, num_bytes, truncate))
    with state.queue.enter(share, "messages", timing.patience) as place:
        prompt = await _prompt(state, fields)
        place.settle(params.n, [len(prompt.token_ids)])
        generation = Generation(
            f"chatcmpl-{uuid.uuid4().hex}",
            trace_id_of(request),
            [prompt],
            params,
            _max_tokens(fields) is None,
            place,
            timing,
            priority=fields.priority or 0,
            cache_salt=fields.cache_salt,
            num_open_tokens=await _num_open_tokens(state, fields, prompt),
            beam_search=beam_search,
            pins=[await _pins(state, fields, role, prompt)],
            retention=retention_of(fields, role),
            tenant=tenant_of(request),
        )
        answer = ChatAnswer(state, fields, generation)
        if fields.stream:
            return await event_stream(request, answer.events())
        return await unless_gone(request.receive, answer.whole())


async def _prompt(state: ServerState, fields: ChatRequest) -> Prompt:
    prompt = await encode_messages(state, fields.messages or [], template_options(fields))
    if fields.truncate_prompt_tokens is not None:
        prompt = Prompt(prompt.token_ids[-fields.truncate_prompt_tokens :])
    check_length(state, prompt.token_ids, "messages")
    return prompt


def _refuse(fields: ChatRequest) -> None:
    if fields.tools and fields.tool_choice != "none":
        raise InvalidRequestError("tools are not supported yet; send tool_choice 'none' to ignore them.", "tools")
    if not fields.tools and fields.tool_choice not in (None, "none", "auto"):
        raise InvalidRequestError("tool_choice needs tools, which are not supported yet.", "tool_choice")
    if fields.functions:
        raise InvalidRequestError("functions are not supported.", "functions")


def _max_tokens(fields: ChatRequest) -> int | None:
    """None means the room left (spec D28)."""
    if fields.max_completion_tokens is not None:
        return fields.max_completion_tokens
    return fields.max_tokens


async def _num_open_tokens(state: ServerState, fields: ChatRequest, prompt: Prompt) -> int:
    """The number itself, or "system" counted."""
    asked, messages = fields.cache_open_tokens, fields.messages or []
    if asked != "system":
        return asked or 0
    return await in_text_thread(state, lambda: num_system_tokens(state.tokenizer, messages, prompt.token_ids))


async def _pins(state: ServerState, fields: ChatRequest, role: Role, prompt: Prompt) -> tuple[PinWish, ...]:
    """What ``pin_prefix`` asks for, and, of who may pin, the marks."""
    messages = fields.messages or []
    marks = cache_marks(messages, fields.tools, fields.cache_control)
    wishes = prompt_pins(fields, role, state.settings.limits, [prompt])
    if marks and role >= Role.PINNER and fields.truncate_prompt_tokens is None:
        wishes += await marked_pins(state, messages, marks, prompt.token_ids, template_options(fields))
    return tuple(wishes)


def _params(state: ServerState, fields: ChatRequest) -> SamplingParams:
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
    params = sampling_params(fields, limits, max_tokens=_max_tokens(fields), logprobs=logprobs)
    params.check_vocabulary(state.engine.limits.vocab_size)
    return params


class ChatAnswer:
    """The answer to one request, whole or as events."""

    def __init__(self, state: ServerState, fields: ChatRequest, generation: Generation) -> None:
        self._state = state
        self._fields = fields
        self._generation = generation
        self._id = generation.answer_id
        self._created = int(time.time())
        self._writer = TokenWriter(state.tokenizer, generation.params.skip_special_tokens)
        self._prefix = self._echoed_text()

    def _echoed_text(self) -> str:
        """With ``echo`` and a last message of the assistant's, the answer starts with that message's text."""
        last = (self._fields.messages or [{}])[-1]
        return message_text(last) if self._fields.echo and last.get("role") == RESPONSE_ROLE else ""

    async def whole(self) -> Response:
        choices = await collect(self._state, self._generation)

        def build() -> Response:
            built = [self._choice(index, choice) for index, choice in enumerate(choices)]
            body = self._body("chat.completion", built) | {"usage": self._generation.usage()}
            if self._fields.prompt_logprobs is not None:
                body["prompt_logprobs"] = prompt_logprobs(self._writer, choices[0].prompt_logprobs)
            if self._fields.return_token_ids:
                body["prompt_token_ids"] = self._generation.prompts[0].token_ids
            return json_response(body)

        return await in_text_thread(self._state, build)

    def _choice(self, index: int, choice: OutputDelta) -> dict[str, Any]:
        built: dict[str, Any] = {
            "index": index,
            "message": {"role": RESPONSE_ROLE, "content": self._prefix + choice.text, "refusal": None},
            "logprobs": None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self._fields.logprobs:
            built["logprobs"] = chat_logprobs(self._writer, choice.logprobs or [], self._fields.top_logprobs or 0)
        if self._fields.return_token_ids:
            built["token_ids"] = choice.token_ids
        return built

    async def events(self) -> AsyncGenerator[Event, None]:
        opened: set[int] = set()
        usage = {"usage": None} if self._fields.wants_usage_chunk else {}
        async with aclosing(run(self._state, self._generation)) as items:
            async for index, delta in items:
                if index not in opened:
                    yield self._opening(index, not opened) | usage
                    opened.add(index)
                if self._says_something(delta):
                    yield self._body("chat.completion.chunk", [self._chunk(index, delta)]) | usage
        if self._fields.wants_usage_chunk:
            yield self._body("chat.completion.chunk", []) | {"usage": self._generation.usage()}

    def _opening(self, index: int, is_first: bool) -> dict[str, Any]:
        """The chunk that names the role, one a choice."""
        choice = {
            "index": index,
            "delta": {"role": RESPONSE_ROLE, "content": self._prefix},
            "logprobs": None,
            "finish_reason": None,
        }
        body = self._body("chat.completion.chunk", [choice])
        if is_first and self._fields.return_token_ids:
            body["prompt_token_ids"] = self._generation.prompts[0].token_ids
        return body

    def _says_something(self, delta: OutputDelta) -> bool:
        if self._fields.return_token_ids or delta.logprobs:
            return bool(delta.token_ids or delta.finish_reason)
        return bool(delta.text or delta.finish_reason)

    def _chunk(self, index: int, delta: OutputDelta) -> dict[str, Any]:
        chunk: dict[str, Any] = {
            "index": index,
            "delta": {"content": delta.text} if delta.text else {},
            "logprobs": None,
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason is not None:
            chunk["stop_reason"] = delta.stop_reason
        if self._fields.logprobs and delta.logprobs:
            chunk["logprobs"] = chat_logprobs(self._writer, delta.logprobs, self._fields.top_logprobs or 0)
        if self._fields.return_token_ids:
            chunk["token_ids"] = delta.token_ids
        return chunk

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._fields.model or self._state.settings.served_model_name,
            "choices": choices,
        }
