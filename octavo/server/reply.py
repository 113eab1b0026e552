"""The text of one choice to the fields of a chat message: thinking, content, tool calls."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from octavo.server.reasoning import ReasoningMarks, ReasoningSplitter
from octavo.server.tools.events import Arguments, CallBegin, CallEnd, Content, Cut, Event
from octavo.server.tools.parser import Syntax, ToolParser


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """``names``: of the functions; where it is a mapping, to the schemas of their parameters. ``is_parallel``: whether
    more calls than one may be returned; further ones are left out if not."""

    syntax: Syntax
    names: Collection[str]
    make_id: Callable[[], str]
    is_parallel: bool = True


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """What to look for in the text of an answer; ``reasoning_is_open``: it begins inside the thinking."""

    tools: ToolFormat | None = None
    reasoning: ReasoningMarks | None = None
    reasoning_is_open: bool = False


@dataclass(slots=True)
class CallDelta:
    """News of call ``index``. ``call_id`` and ``name`` are there in its first."""

    index: int
    call_id: str | None = None
    name: str | None = None
    arguments: str = ""

    def as_dict(self) -> dict[str, Any]:
        if self.call_id is None:
            return {"index": self.index, "function": {"arguments": self.arguments}}
        return {"index": self.index} | self.as_whole()

    def as_whole(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.call_id, "type": "function", "function": function}


@dataclass(slots=True)
class TextDelta:
    """News of the thinking, or of the content."""

    text: str
    is_reasoning: bool = False


@dataclass(slots=True)
class ReplyDelta:
    """What is new in a message. ``parts``: in the order of the text, neighbours of one kind joined; of a call there is
    one at most."""

    parts: list[TextDelta | CallDelta] = field(default_factory=list)

    @property
    def reasoning(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextDelta) and part.is_reasoning)

    @property
    def content(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextDelta) and not part.is_reasoning)

    @property
    def calls(self) -> list[CallDelta]:
        return [part for part in self.parts if isinstance(part, CallDelta)]

    def add_text(self, text: str, is_reasoning: bool = False) -> None:
        if not text:
            return
        last = self.parts[-1] if self.parts else None
        if isinstance(last, TextDelta) and last.is_reasoning == is_reasoning:
            last.text += text
        else:
            self.parts.append(TextDelta(text, is_reasoning))

    def add_arguments(self, index: int, text: str) -> None:
        last = self.parts[-1] if self.parts else None
        if isinstance(last, CallDelta) and last.index == index:
            last.arguments += text
        else:
            self.parts.append(CallDelta(index, arguments=text))

    def as_dict(self) -> dict[str, Any]:
        """As a streamed delta; empty where nothing is new."""
        if len(self.parts) == 1 and isinstance(self.parts[0], TextDelta):  # nearly always
            only = self.parts[0]
            return {"reasoning_content" if only.is_reasoning else "content": only.text}
        calls = [call.as_dict() for call in self.calls]
        shown = {"reasoning_content": self.reasoning, "content": self.content, "tool_calls": calls}
        return {name: value for name, value in shown.items() if value}

    def as_message(self, role: str, prefix: str) -> dict[str, Any]:
        """As a whole message. ``prefix``: comes before the content."""
        content, reasoning, calls = prefix + self.content, self.reasoning, self.calls
        has_more = bool(reasoning or calls)
        message: dict[str, Any] = {"role": role, "content": None if has_more and not content else content}
        message["refusal"] = None
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [call.as_whole() for call in calls]
        return message


class Reply:
    """One choice. Streamed deltas and the whole message come from the same parsers, fed in pieces or at once."""

    def __init__(self, reply_format: ReplyFormat) -> None:
        tools, reasoning = reply_format.tools, reply_format.reasoning
        self._splitter = ReasoningSplitter(reasoning, reply_format.reasoning_is_open) if reasoning else None
        self._parser = ToolParser(tools.syntax, tools.names) if tools else None
        self._make_id = tools.make_id if tools else str
        self._is_parallel = tools is None or tools.is_parallel
        self._num_calls = 0
        self._calls_are_whole = True
        self._ends_with_call = False

    def add(self, text: str, finish_reason: str | None) -> ReplyDelta:
        """The next piece of the text; ``finish_reason``: the engine's, with the last one."""
        delta = ReplyDelta()
        if self._splitter is not None:
            reasoning, text = self._splitter.feed(text)
            delta.add_text(reasoning, is_reasoning=True)
            if finish_reason is not None:
                reasoning, rest = self._splitter.finish()
                delta.add_text(reasoning, is_reasoning=True)
                text += rest
        if self._parser is None:
            delta.add_text(text)
            return delta
        events = self._parser.feed(text) if text else []
        if finish_reason is not None:
            events += self._parser.finish(is_cut=finish_reason == "length")
        for event in events:
            self._note(event, delta)
        return delta

    def _note(self, event: Event, delta: ReplyDelta) -> None:
        self._ends_with_call = isinstance(event, CallEnd)
        match event:
            case Content():
                delta.add_text(event.text)
            case CallBegin():
                self._num_calls += 1
                if self._keeps_call:
                    delta.parts.append(CallDelta(self._num_calls - 1, self._make_id(), event.name))
            case Arguments():
                if self._keeps_call:
                    delta.add_arguments(self._num_calls - 1, event.text)
            case CallEnd():
                self._calls_are_whole &= event.is_complete or not self._keeps_call
            case Cut():
                self._calls_are_whole = False

    @property
    def _keeps_call(self) -> bool:
        return self._is_parallel or self._num_calls == 1

    def finish_reason(self, reason: str | None) -> str | None:
        """What a client is told, given the engine's reason (spec D11)."""
        if not self._num_calls or not self._calls_are_whole:
            return reason
        if reason == "stop" or (reason == "length" and self._ends_with_call):
            return "tool_calls"
        return reason
