"""The shapes of responses: see octavo/server/answer_shapes.py."""

from typing import Any

from msgspec import UNSET, UnsetType

from octavo.server.answer_shapes import Shape


class ItemShape(Shape):
    """``type`` says which of the rest are there: reasoning, message or function_call."""

    type: str
    id: str
    status: str
    summary: list[Any] | UnsetType = UNSET
    role: str | UnsetType = UNSET
    content: list[dict[str, Any]] | UnsetType = UNSET
    call_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class InputDetails(Shape):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Shape):
    reasoning_tokens: int


class ResponseUsage(Shape):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseBody(Shape):
    """``instructions`` to ``truncation``: as the request has them."""

    id: str
    object: str
    created_at: int
    status: str
    error: dict[str, Any] | None
    incomplete_details: dict[str, str] | None
    model: str
    output: list[ItemShape]
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    parallel_tool_calls: bool
    previous_response_id: None
    temperature: float
    top_p: float
    text: dict[str, Any]
    tools: list[Any]
    tool_choice: Any
    truncation: str
    background: bool
    store: bool
    usage: ResponseUsage | None
