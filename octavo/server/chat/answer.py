"""The answer to a chat request, whole or as events, in OpenAI's shapes."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

from starlette.responses import Response

from octavo.engine.messages import OutputDelta
from octavo.server.answers import AnyEvent, json_response
from octavo.server.envelope import Envelope
from octavo.server.generation import Generation, collect, run
from octavo.server.logprobs import TokenWriter, chat_logprobs, prompt_logprobs
from octavo.server.prompts import in_text_thread
from octavo.server.reply import Reply, ReplyFormat
from octavo.server.state import ServerState

RESPONSE_ROLE = "assistant"


class AnswerFields(Protocol):
    """What a request says about the form of its answer."""

    model: str | None
    logprobs: bool | None
    top_logprobs: int | None
    prompt_logprobs: int | None
    return_token_ids: bool | None

    @property
    def wants_usage_chunk(self) -> bool: ...


class ChatAnswer:
    """The answer to one request, whole or as events."""

    def __init__(
        self, state: ServerState, fields: AnswerFields, generation: Generation, reply_format: ReplyFormat, prefix: str
    ) -> None:
        """``prefix``: what the content begins with, before anything is generated."""
        self._state = state
        self._fields = fields
        self._generation = generation
        self._id = generation.answer_id
        self._created = int(time.time())
        params = generation.params
        self._writer = TokenWriter(state.tokenizer, params.skip_special_tokens, params.shown_token_ids or ())
        self._reply_format = reply_format
        self._prefix = prefix

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
        reply = Reply(self._reply_format)
        message = reply.add(choice.text, choice.finish_reason).as_message(RESPONSE_ROLE, self._prefix)
        built: dict[str, Any] = {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": reply.finish_reason(choice.finish_reason),
            "stop_reason": choice.stop_reason,
        }
        if self._fields.logprobs:
            built["logprobs"] = chat_logprobs(self._writer, choice.logprobs or [], self._fields.top_logprobs or 0)
        if self._fields.return_token_ids:
            built["token_ids"] = choice.token_ids
        return built

    async def events(self) -> AsyncGenerator[AnyEvent, None]:
        replies: dict[int, Reply] = {}
        usage = {"usage": None} if self._fields.wants_usage_chunk else {}
        envelope = Envelope(self._head("chat.completion.chunk"), usage)
        async with aclosing(run(self._state, self._generation)) as items:
            async for index, delta in items:
                if index not in replies:
                    yield self._opening(index, not replies) | usage
                    replies[index] = Reply(self._reply_format)
                chunk = self._chunk(index, delta, replies[index])
                if chunk["delta"] or self._is_said_anyway(delta):
                    yield envelope.chunk(chunk)
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

    def _is_said_anyway(self, delta: OutputDelta) -> bool:
        """Does the client hear of it though the message has nothing new?"""
        if self._fields.return_token_ids or delta.logprobs:
            return bool(delta.token_ids or delta.finish_reason)
        return delta.finish_reason is not None

    def _chunk(self, index: int, delta: OutputDelta, reply: Reply) -> dict[str, Any]:
        chunk: dict[str, Any] = {
            "index": index,
            "delta": reply.add(delta.text, delta.finish_reason).as_dict(),
            "logprobs": None,
            "finish_reason": reply.finish_reason(delta.finish_reason),
        }
        if delta.finish_reason is not None:
            chunk["stop_reason"] = delta.stop_reason
        if self._fields.logprobs and delta.logprobs:
            chunk["logprobs"] = chat_logprobs(self._writer, delta.logprobs, self._fields.top_logprobs or 0)
        if self._fields.return_token_ids:
            chunk["token_ids"] = delta.token_ids
        return chunk

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._fields.model or self._state.settings.served_model_name,
        }

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._head(kind) | {"choices": choices}
