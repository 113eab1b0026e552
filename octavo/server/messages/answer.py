"""The answer in Anthropic's form: blocks of content, whole or as events."""

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from starlette.responses import Response

from octavo.engine.messages import OutputDelta
from octavo.server.answers import Event, json_response
from octavo.server.chat.opened import Chat
from octavo.server.generation import collect, run
from octavo.server.prompts import in_text_thread
from octavo.server.reply import CallDelta, Reply, ReplyDelta, TextDelta
from octavo.server.state import ServerState

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageAnswer:
    def __init__(self, state: ServerState, chat: Chat) -> None:
        self._state = state
        self._chat = chat

    async def whole(self) -> Response:
        (choice,) = await collect(self._state, self._chat.generation)

        def build() -> Response:
            reply = Reply(self._chat.reply_format)
            content = _blocks(reply.add(choice.text, choice.finish_reason))
            return json_response(self._message(content) | _ending(reply, choice))

        return await in_text_thread(self._state, build)

    async def events(self) -> AsyncGenerator[Event, None]:
        reply, blocks = Reply(self._chat.reply_format), BlockEvents()
        is_begun = False
        async with aclosing(run(self._state, self._chat.generation)) as items:
            async for _, delta in items:
                if not is_begun:
                    is_begun = True
                    opening = self._message([]) | {"stop_reason": None, "stop_sequence": None}
                    yield {"type": "message_start", "message": opening}
                    yield {"type": "ping"}
                for event in blocks.add(reply.add(delta.text, delta.finish_reason)):
                    yield event
                if delta.finish_reason is not None:
                    for event in blocks.end():
                        yield event
                    yield {"type": "message_delta", "delta": _ending(reply, delta), "usage": self._usage()}
        yield {"type": "message_stop"}

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._chat.generation.answer_id,
            "type": "message",
            "role": "assistant",
            "model": self._state.settings.served_model_name,
            "content": content,
            "usage": self._usage(),
        }

    def _usage(self) -> dict[str, Any]:
        """``input_tokens`` are those that were computed: what the cache had is counted apart."""
        usage = self._chat.generation.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
        }


def _ending(reply: Reply, choice: OutputDelta) -> dict[str, Any]:
    reason = reply.finish_reason(choice.finish_reason) or ""
    if reason == "stop" and isinstance(choice.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop_reason}
    return {"stop_reason": _STOP_REASONS.get(reason, "end_turn"), "stop_sequence": None}


def _blocks(reply: ReplyDelta) -> list[dict[str, Any]]:
    """A call that was cut inside its arguments, or nests too deeply to be read, has no input, and is left out."""
    blocks: list[dict[str, Any]] = []
    for part in reply.parts:
        if isinstance(part, TextDelta):
            kind = _kind(part)
            blocks.append(_TEXT_BLOCKS[kind] | {kind: part.text})
        elif (given := _input(part)) is not None:
            blocks.append(_call_block(part) | {"input": given})
    return blocks


_TEXT_BLOCKS: dict[str, dict[str, Any]] = {
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
}


def _kind(part: TextDelta) -> str:
    return "thinking" if part.is_reasoning else "text"


def _call_block(call: CallDelta) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.call_id, "name": call.name, "input": {}}


def _input(call: CallDelta) -> Any:
    try:
        return json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None


class BlockEvents:
    """What is new in an answer, as events of its blocks; one is open at a time."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | int | None = None
        """The kind of the open block, or the number of its call."""

    def add(self, delta: ReplyDelta) -> Iterator[Event]:
        for part in delta.parts:
            if isinstance(part, TextDelta):
                kind = _kind(part)
                yield from self._start(kind, _TEXT_BLOCKS[kind])
                yield self._delta({"type": f"{kind}_delta", kind: part.text})
            else:
                yield from self._start(part.index, _call_block(part))
                if part.arguments:
                    yield self._delta({"type": "input_json_delta", "partial_json": part.arguments})

    def end(self) -> Iterator[Event]:
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._index}
            self._open = None

    def _start(self, block: str | int, shown: dict[str, Any]) -> Iterator[Event]:
        if block == self._open:
            return
        yield from self.end()
        self._open = block
        self._index += 1
        yield {"type": "content_block_start", "index": self._index, "content_block": shown}

    def _delta(self, news: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": news}
