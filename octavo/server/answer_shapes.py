"""The shapes of answers, as the OpenAPI document shows them. Answers are built elsewhere, as plain maps; tests hold
each of them to its shape, so a field that is not here, or not always there, does not stay unnoticed."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class Shape(msgspec.Struct, forbid_unknown_fields=True):
    """A field without a default is always there; one that is UNSET by default may be left out."""


class ErrorDetail(Shape):
    """``param``: the field of the request that is to blame, if it is one."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(Shape):
    error: ErrorDetail


class PromptTokensDetails(Shape):
    cached_tokens: int
    pinned_tokens: int | UnsetType = UNSET


class Usage(Shape):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class RankedToken(Shape):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, RankedToken] | None] | None
"""One entry a prompt token, by token id; the first is null."""


class CompletionLogprobsShape(Shape):
    """Lists of equal length, one entry a token."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]
    bytes: list[list[int]]


class CompletionChoice(Shape):
    index: int
    text: str
    logprobs: CompletionLogprobsShape | None
    finish_reason: str | None
    stop_reason: int | str | None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class CompletionBody(Shape):
    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunk(Shape):
    """One event of a streamed completion."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class ShownToken(Shape):
    token: str
    logprob: float
    bytes: list[int]


class TokenWithBest(ShownToken):
    top_logprobs: list[ShownToken]


class ChatLogprobsShape(Shape):
    content: list[TokenWithBest]
    refusal: str | None


class CalledFunction(Shape):
    name: str
    arguments: str


class ToolCallShape(Shape):
    id: str
    type: str
    function: CalledFunction


class ChatMessage(Shape):
    role: str
    content: str | None
    refusal: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallShape] | UnsetType = UNSET


class ChatChoice(Shape):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobsShape | None
    finish_reason: str
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET


class ChatBody(Shape):
    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class FunctionDelta(Shape):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(Shape):
    """``id``, ``type`` and the function's name come once, in the first delta of an index."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class MessageDelta(Shape):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(Shape):
    index: int
    delta: MessageDelta
    logprobs: ChatLogprobsShape | None
    finish_reason: str | None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Shape):
    """One event of a streamed chat completion."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Model(Shape):
    id: str
    object: str
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int


class ModelList(Shape):
    object: str
    data: list[Model]


class Tokens(Shape):
    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None


class TokenizerInfo(Shape):
    """``eos_token``: of those that end an answer the one with the lowest id."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    eos_tokens: list[str]
    special_tokens: list[str]
    chat_template: str | None


class DetokenizedText(Shape):
    prompt: str


class Embedding(Shape):
    """``embedding``: numbers, or base64 of them."""

    object: str
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Shape):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Shape):
    object: str
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Load(Shape):
    server_load: int


class Version(Shape):
    version: str


class Pin(Shape):
    id: str
    object: str
    tokens: int
    blocks: int
    expires_at: float | None
    expires_in: float | None
    priority: int | None
    cache_salt: str | None


class PinList(Shape):
    object: str
    data: list[Pin]
    blocks: int
    quota_blocks: int


class DeletedPin(Shape):
    id: str
    object: str
    deleted: bool


class RefusedRequest(Shape):
    x_request_id: str
    time: float
    status: int
    code: str
    message: str


class TracedRequest(Shape):
    """``events``: what was decided, each with numbers of its own (docs/watching.md)."""

    id: str
    x_request_id: str | None
    arrival: float
    tenant: str
    priority: int
    max_queue_seconds: float | None
    max_request_seconds: float | None
    prompt_tokens: int
    choices: int
    generated_tokens: int
    statuses: dict[str, int]
    finish_reason: str | None
    standing: Any
    num_dropped_events: int
    events: list[dict[str, Any]]


class TracedRequests(Shape):
    object: str
    data: list[TracedRequest]
    refused: list[RefusedRequest]


class RequestHistory(Shape):
    id: str
    requests: list[TracedRequest]
    refused: list[RefusedRequest]
