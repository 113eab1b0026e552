"""A response, whole or as events."""

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import Response

from octavo.server.answers import Event, json_response
from octavo.server.chat.opened import Chat
from octavo.server.errors import as_api_error
from octavo.server.generation import collect, run
from octavo.server.prompts import in_text_thread
from octavo.server.reply import Reply
from octavo.server.responses.output import Output
from octavo.server.responses.request import ResponsesRequest
from octavo.server.state import ServerState


class ResponseAnswer:
    def __init__(self, state: ServerState, fields: ResponsesRequest, chat: Chat) -> None:
        self._state = state
        self._fields = fields
        self._chat = chat
        self._created = int(time.time())
        self._output = Output()

    async def whole(self) -> Response:
        (choice,) = await collect(self._state, self._chat.generation)

        def build() -> Response:
            reply, output = Reply(self._chat.reply_format), self._output
            for _ in output.add(reply.add(choice.text, choice.finish_reason)):
                pass
            status = _status(reply, choice.finish_reason)
            for _ in output.end(status):
                pass
            return json_response(self._body(status))

        return await in_text_thread(self._state, build)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Numbered. A failure after the first of them is one of them."""
        number = 0
        try:
            async with aclosing(self._events()) as events:
                async for event in events:
                    yield event | {"sequence_number": number}
                    number += 1
        except Exception as error:
            if not number:
                raise
            told = as_api_error(error)
            failed = self._body("failed") | {"error": {"code": told.code, "message": told.message}}
            yield {"type": "response.failed", "response": failed, "sequence_number": number}

    async def _events(self) -> AsyncGenerator[Event, None]:
        reply, output = Reply(self._chat.reply_format), self._output
        is_begun = False
        async with aclosing(run(self._state, self._chat.generation)) as items:
            async for _, delta in items:
                if not is_begun:
                    is_begun = True
                    for kind in ("created", "in_progress"):
                        yield {"type": f"response.{kind}", "response": self._body("in_progress")}
                for event in output.add(reply.add(delta.text, delta.finish_reason)):
                    yield event
                if delta.finish_reason is not None:
                    status = _status(reply, delta.finish_reason)
                    for event in output.end(status):
                        yield event
                    body = await in_text_thread(self._state, lambda status=status: self._body(status))  # type: ignore[misc]
                    yield {"type": f"response.{status}", "response": body}

    def _body(self, status: str) -> dict[str, Any]:
        fields, has_ended = self._fields, status != "in_progress"
        text = fields.text or {}
        return {
            "id": self._chat.generation.answer_id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._state.settings.served_model_name,
            "output": list(self._output.items),
            "instructions": fields.instructions,
            "max_output_tokens": fields.max_output_tokens,
            "metadata": fields.metadata or {},
            "parallel_tool_calls": fields.parallel_tool_calls is not False,
            "previous_response_id": None,
            "temperature": self._chat.generation.params.temperature,
            "top_p": self._chat.generation.params.top_p,
            "text": {**text, "format": text.get("format") or {"type": "text"}},
            "tools": fields.tools or [],
            "tool_choice": fields.tool_choice or "auto",
            "truncation": "disabled",
            "background": False,
            "store": False,
            "usage": self._usage() if has_ended else None,
        }

    def _usage(self) -> dict[str, Any]:
        usage = self._chat.generation.usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {
                "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
                "cache_write_tokens": 0,
            },
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": sum(map(self._num_thought, self._output.items))},
            "total_tokens": usage["total_tokens"],
        }

    def _num_thought(self, item: Mapping[str, Any]) -> int:
        """Tokens of an item's thinking, tokenized again: what was generated is not known item by item."""
        if item["type"] != "reasoning":
            return 0
        return sum(
            len(self._state.tokenizer.encode(part["text"], add_special_tokens=False)) for part in item["content"]
        )


def _status(reply: Reply, finish_reason: str | None) -> str:
    return "incomplete" if reply.finish_reason(finish_reason) == "length" else "completed"
