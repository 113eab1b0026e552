"""The output of a response, item by item: what it holds so far, and the events that tell of it."""

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from octavo.server.answers import Event
from octavo.server.reply import CallDelta, ReplyDelta, TextDelta

Item = dict[str, Any]

_ID_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
_TEXT_EVENTS = {"reasoning": "response.reasoning_text", "message": "response.output_text"}
_TEXT_FIELDS: Mapping[str, dict[str, Any]] = {"reasoning": {}, "message": {"logprobs": []}}
"""Of events of their texts, besides the text."""


class Output:
    """``items``: all there is. One item is open at a time, the last; events are without sequence numbers."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._open: str | int | None = None
        """The type of the open item, or the number of its call."""

    def add(self, delta: ReplyDelta) -> Iterator[Event]:
        """What is new. The events have to be read to the end."""
        for part in delta.parts:
            if isinstance(part, TextDelta):
                yield from self._add_text("reasoning" if part.is_reasoning else "message", part.text)
            else:
                yield from self._add_call(part)

    def end(self, status: str = "completed") -> Iterator[Event]:
        """The open item, if any, has ended; ``status``: "incomplete" where a limit has cut it."""
        if self._open is None:
            return
        self._open = None
        item = self.items[-1]
        item["status"] = status
        if item["type"] == "function_call":
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield self._of_item("response.function_call_arguments.done", **done)
        else:
            (part,) = item["content"]
            more = _TEXT_FIELDS[item["type"]]
            yield self._of_item(f"{_TEXT_EVENTS[item['type']]}.done", content_index=0, text=part["text"], **more)
            yield self._of_item("response.content_part.done", content_index=0, part=dict(part))
        yield self._told("response.output_item.done")

    def _add_text(self, kind: str, text: str) -> Iterator[Event]:
        if self._open != kind:
            yield from self._start(kind, _text_item(kind))
            part = _part(kind)
            self.items[-1]["content"].append(part)
            yield self._of_item("response.content_part.added", content_index=0, part=dict(part))
        self.items[-1]["content"][0]["text"] += text
        yield self._of_item(f"{_TEXT_EVENTS[kind]}.delta", content_index=0, delta=text, **_TEXT_FIELDS[kind])

    def _add_call(self, call: CallDelta) -> Iterator[Event]:
        if self._open != call.index:
            item = {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": ""}
            yield from self._start(call.index, item)
        if call.arguments:
            self.items[-1]["arguments"] += call.arguments
            yield self._of_item("response.function_call_arguments.delta", delta=call.arguments)

    def _start(self, key: str | int, item: Item) -> Iterator[Event]:
        yield from self.end()
        self._open = key
        item_id = f"{_ID_PREFIXES[item['type']]}_{uuid.uuid4().hex}"
        self.items.append({"id": item_id, "status": "in_progress"} | item)
        yield self._told("response.output_item.added")

    def _told(self, kind: str) -> Event:
        """With the item as it is now."""
        item = self.items[-1]
        shown = item | ({"content": [dict(part) for part in item["content"]]} if "content" in item else {})
        return {"type": kind, "output_index": len(self.items) - 1, "item": shown}

    def _of_item(self, kind: str, **fields: Any) -> Event:
        place = {"output_index": len(self.items) - 1, "item_id": self.items[-1]["id"]}
        return {"type": kind} | place | fields


def _text_item(kind: str) -> Item:
    if kind == "reasoning":
        return {"type": "reasoning", "summary": [], "content": []}
    return {"type": "message", "role": "assistant", "content": []}


def _part(kind: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": ""}
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
