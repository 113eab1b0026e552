"""The shapes of answers in Anthropic's form: see octavo/server/answer_shapes.py."""

from typing import Any

from msgspec import UNSET, UnsetType

from octavo.server.answer_shapes import ErrorDetail, Shape


class MessageErrorBody(Shape):
    type: str
    error: ErrorDetail


class Block(Shape):
    """``type`` says which of the rest are there: text, thinking (and its signature), or tool_use."""

    type: str
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    signature: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    input: dict[str, Any] | UnsetType = UNSET


class MessageUsage(Shape):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageBody(Shape):
    id: str
    type: str
    role: str
    model: str
    content: list[Block]
    usage: MessageUsage
    stop_reason: str
    stop_sequence: str | None


class CountedTokens(Shape):
    input_tokens: int
