"""Prompts as text: JSON lines in OpenAI's batch format, or with ``messages`` or a ``prompt`` each."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from octavo.sim.traces.json_lines import parse_object
from octavo.sim.traces.lines import Reader, TraceFile
from octavo.sim.traces.request import BadTraceLineError

MAX_CHARACTERS = 16_384
"""Of a prompt, what is looked at."""

MAX_MESSAGES = 1024
"""The same of a conversation."""

FIELDS = ("messages", "prompt")


class Prompt(NamedTuple):
    """Either ``messages``, with ``tools`` perhaps, or a ``text``; cut to ``MAX_CHARACTERS``. ``length``: characters
    that it had. ``line``: where it stands."""

    line: int
    length: int
    text: str
    messages: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Any] = ()

    def plain(self) -> str:
        """All of it as one text: a line with the role before each message, tools first."""
        if not self.messages:
            return self.text
        tools = f"tools: {json.dumps(self.tools)}\n" if self.tools else ""
        return tools + "".join(f"{message['role']}:\n{message['content']}\n" for message in self.messages)


def is_prompts(line: str) -> bool:
    """Whether a file that begins with this line has prompts in it."""
    try:
        fields = parse_object(line)
    except BadTraceLineError:
        return False
    body = fields.get("body", fields)
    return isinstance(body, dict) and ("messages" in body or isinstance(body.get("prompt"), str | list))


def read_prompts(file: TraceFile, *, lenient: bool = False) -> tuple[Iterator[Prompt], Reader]:
    """Prompts as they stand in the file, and their reader, which counts what it leaves out.

    Raises:
        ConfigurationError: (while it is read) a line has no prompt.
    """
    reader = Reader(file, lenient=lenient)
    return _prompts(file, reader), reader


def _prompts(file: TraceFile, reader: Reader) -> Iterator[Prompt]:
    for line in file.lines():
        try:
            yield from _parse(line.text, line.number)
        except BadTraceLineError as error:
            reader.note(line.number, str(error), line.is_whole)


def _parse(text: str, line: int) -> list[Prompt]:
    fields = parse_object(text)
    body = fields.get("body", fields)
    if not isinstance(body, dict):
        raise BadTraceLineError("body is no JSON object")
    if "messages" in body:
        return [_conversation(body["messages"], body.get("tools") or [], line)]
    if "prompt" not in body:
        raise BadTraceLineError(f"there is neither {' nor '.join(FIELDS)}")
    given = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
    if not given or not all(isinstance(each, str) and each for each in given):
        raise BadTraceLineError("prompt is no text, or list of texts")
    return [Prompt(line, len(each), each[:MAX_CHARACTERS]) for each in given]


def _conversation(given: Any, tools: Any, line: int) -> Prompt:
    if not isinstance(given, list) or not given:
        raise BadTraceLineError("messages is no list of messages")
    if not isinstance(tools, list):
        raise BadTraceLineError("tools is no list")
    messages: list[Mapping[str, Any]] = []
    length = 0
    for each in given:
        content = _content(each)
        if length < MAX_CHARACTERS and len(messages) < MAX_MESSAGES:
            messages.append({**each, "content": content[: MAX_CHARACTERS - length]})
        length += len(content)
    if not length:
        raise BadTraceLineError("messages is without any text")
    return Prompt(line, length, "", messages, tools)


def _content(message: Any) -> str:
    """The text of a message; of its parts, those that are text."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BadTraceLineError("a message is no JSON object with a role")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise BadTraceLineError("the content of a message is no text")
    return "".join(part["text"] for part in content if isinstance(part.get("text"), str))
