"""POST /v1/completions."""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from octavo.core.errors import InvalidRequestError
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import TokenLogprobs
from octavo.engine.messages import OutputDelta
from octavo.server.access.auth import allowance_of, role_of, tenant_of
from octavo.server.answers import AnyEvent, answered, json_response
from octavo.server.beams import beam_search_params
from octavo.server.body import read_request_body
from octavo.server.context import check_model, server_state
from octavo.server.endpoints import Endpoints
from octavo.server.envelope import Envelope
from octavo.server.generation import Generation, collect, run
from octavo.server.keeping import prompt_pins, retention_of
from octavo.server.logprobs import CompletionLogprobs, TokenWriter, prompt_logprobs
from octavo.server.prompts import Prompt, encode_prompts, fewest_tokens, in_text_thread, split_prompts
from octavo.server.queueing.promises import Share
from octavo.server.queueing.timing import timing_of
from octavo.server.sampling import Int64, SamplingFields, refuse_unsupported, sampling_params
from octavo.server.state import ServerState
from octavo.server.structured import asked_constraint, constraint_field
from octavo.server.truncation import num_kept
from octavo.server.visit import visit_of

endpoints = Endpoints()

DEFAULT_MAX_TOKENS = 16
"""As OpenAI (spec D28)."""


class CompletionRequest(SamplingFields, kw_only=True):
    prompt: Any = None
    logprobs: Int64 | None = None
    suffix: str | None = None
    best_of: Int64 | None = None
    cache_open_tokens: Int64 | None = None
    add_special_tokens: bool | None = None


@endpoints.post("/v1/completions")
async def create_completion(request: Request) -> Response:
    """Continue one or more prompts, each n times."""
    state = server_state(request)
    state.require_ready()
    fields = await read_request_body(request, CompletionRequest, state.settings.limits)
    check_model(state, fields.model)
    params = _params(state, fields)
    beam_search = beam_search_params(fields, params)
    role = role_of(request)
    retention = retention_of(fields, role)
    timing = timing_of(request, fields, state.settings)
    items = split_prompts(state, fields.prompt, params.n)
    truncate = num_kept(fields.truncate_prompt_tokens, state.engine.limits.max_model_len, params.max_tokens)
    await state.constraints.check(params.constraint, constraint_field(fields), timing, tenant_of(request))
    share = Share(params.n * len(items), fewest_tokens(state, items, truncate))
    with state.queue.enter(share, patience=timing.patience) as place:
        prompts = await encode_prompts(
            state, items, add_special_tokens=fields.add_special_tokens is not False, truncate=truncate
        )
        place.settle(params.n, [len(prompt.token_ids) for prompt in prompts])
        if fields.echo:
            prompts = await _with_texts(state, prompts, params)
        generation = Generation(
            f"cmpl-{uuid.uuid4().hex}",
            visit_of(request),
            prompts,
            params,
            fields.max_tokens is None,
            place,
            timing,
            priority=fields.priority or 0,
            cache_salt=fields.cache_salt,
            num_open_tokens=fields.cache_open_tokens or 0,
            beam_search=beam_search,
            pins=[(wish,) for wish in prompt_pins(fields, role, state.settings.limits, prompts)],
            retention=retention,
            tenant=tenant_of(request),
            allowance=allowance_of(request),
        )
        answer = CompletionAnswer(state, fields, generation)
        return await answered(request, answer, fields.stream)


def _params(state: ServerState, fields: CompletionRequest) -> SamplingParams:
    limits = state.settings.limits
    refuse_unsupported(fields, limits)
    if fields.suffix:
        raise InvalidRequestError("suffix is not supported.", "suffix")
    if fields.best_of is not None and fields.best_of != (fields.n or 1):
        raise InvalidRequestError(f"best_of is supported only where it equals n ({fields.n or 1}).", "best_of")
    if fields.echo and fields.logprobs is not None:
        if fields.prompt_logprobs is not None and fields.prompt_logprobs != fields.logprobs:
            raise InvalidRequestError("With echo, prompt_logprobs must equal logprobs.", "prompt_logprobs")
        fields.prompt_logprobs = fields.logprobs
    max_tokens = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    if fields.max_tokens is None and fields.min_tokens is not None:
        max_tokens = max(max_tokens, fields.min_tokens)
    constraint = asked_constraint(fields, limits.sampling.structured)
    params = sampling_params(fields, limits, max_tokens=max_tokens, logprobs=fields.logprobs, constraint=constraint)
    params.check_vocabulary(state.engine.limits.vocab_size)
    return params


async def _with_texts(state: ServerState, prompts: list[Prompt], params: SamplingParams) -> list[Prompt]:
    """Prompts with the text that ``echo`` repeats."""

    def decode() -> list[Prompt]:
        return [
            Prompt(
                prompt.token_ids,
                state.tokenizer.decode(prompt.token_ids, params.skip_special_tokens)
                if prompt.text is None
                else prompt.text,
            )
            for prompt in prompts
        ]

    return await in_text_thread(state, decode)


class CompletionAnswer:
    """The answer to one request, whole or as events."""

    def __init__(self, state: ServerState, fields: CompletionRequest, generation: Generation) -> None:
        self._state = state
        self._fields = fields
        self._generation = generation
        self._id = generation.answer_id
        self._created = int(time.time())
        self._writer = TokenWriter(state.tokenizer, generation.params.skip_special_tokens)

    async def whole(self) -> Response:
        choices = await collect(self._state, self._generation)

        def build() -> Response:
            built = [self._choice(index, choice) for index, choice in enumerate(choices)]
            return json_response(self._body(built) | {"usage": self._generation.usage()})

        return await in_text_thread(self._state, build)

    async def events(self) -> AsyncGenerator[AnyEvent, None]:
        logprobs: dict[int, CompletionLogprobs] = {}
        envelope = Envelope(self._head, {"usage": None} if self._fields.wants_usage_chunk else {})
        async with aclosing(run(self._state, self._generation)) as items:
            async for index, delta in items:
                is_first = index not in logprobs
                if is_first:
                    logprobs[index] = self._logprobs()
                if is_first or self._says_something(delta):
                    yield envelope.chunk(self._chunk(index, delta, logprobs[index], is_first))
        if self._fields.wants_usage_chunk:
            yield self._body([]) | {"usage": self._generation.usage()}

    def _says_something(self, delta: OutputDelta) -> bool:
        if self._fields.return_token_ids or delta.logprobs:
            return bool(delta.token_ids or delta.finish_reason)
        return bool(delta.text or delta.finish_reason)

    def _logprobs(self) -> CompletionLogprobs:
        return CompletionLogprobs(self._writer, self._fields.logprobs or 0)

    def _prompt(self, index: int) -> Prompt:
        return self._generation.prompts[index // self._generation.params.n]

    @property
    def _head(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._fields.model or self._state.settings.served_model_name,
        }

    def _body(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._head | {"choices": choices}

    def _choice(self, index: int, choice: OutputDelta) -> dict[str, Any]:
        built = self._chunk(index, choice, self._logprobs(), is_first=True)
        if self._fields.prompt_logprobs is not None:
            built["prompt_logprobs"] = prompt_logprobs(self._writer, choice.prompt_logprobs)
        return built

    def _chunk(self, index: int, delta: OutputDelta, logprobs: CompletionLogprobs, is_first: bool) -> dict[str, Any]:
        prompt = self._prompt(index)
        echoes = is_first and bool(self._fields.echo)
        chunk: dict[str, Any] = {
            "index": index,
            "text": (prompt.text or "") + delta.text if echoes else delta.text,
            "logprobs": None,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        if self._fields.logprobs is not None:
            entries: list[TokenLogprobs | None] = list(delta.logprobs or [])
            token_ids = delta.token_ids
            if echoes:
                entries, token_ids = [*(delta.prompt_logprobs or []), *entries], [*prompt.token_ids, *token_ids]
            chunk["logprobs"] = logprobs.add(entries, token_ids)
        if self._fields.return_token_ids:
            chunk["prompt_token_ids"] = prompt.token_ids if is_first else None
            chunk["token_ids"] = delta.token_ids
        return chunk
