"""A request of the Responses API to one as chat takes it. Nothing is kept between requests, so what refers to kept
things is refused by name."""

from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.core.errors import InvalidRequestError
from octavo.server.chat.request import ChatRequest
from octavo.server.responses.items import as_chat_messages
from octavo.server.sampling import Int64, JsonSchemaFormat, ResponseFormat

FIELD_NAMES = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text"}
"""From chat's name of a field to the one it has here, where they differ."""

FORMATS = ("text", "json_object", "json_schema")

_KEPT = {
    "previous_response_id": "Nothing is kept here; send the earlier items in input.",
    "conversation": "Nothing is kept here; send the earlier items in input.",
    "prompt": "No prompts are kept here; send instructions and input.",
    "background": "Responses are not kept here, so none can be made in the background.",
    "store": "Responses are not kept here; leave it out, or send false.",
    "top_logprobs": "Logprobs are not part of this endpoint; /v1/chat/completions has them.",
}
"""Fields that have to be left out or false, and why."""
_LOGPROBS = "message.output_text.logprobs"


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """OpenAI's fields, chat's ``seed``, and of Octavo's own ``priority`` and ``cache_salt``."""

    model: str | None = None
    input: Any = None
    instructions: str | None = None
    max_output_tokens: Int64 | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    seed: Int64 | None = None
    text: Any = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning: Any = None
    metadata: Any = None
    include: list[Any] | None = None
    truncation: str | None = None
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    background: bool | None = None
    store: bool | None = None
    top_logprobs: Int64 | None = None
    priority: Int64 | None = None
    cache_salt: str | None = None


def as_chat_request(fields: ResponsesRequest) -> ChatRequest:
    """
    Raises:
        InvalidRequestError: a field that is malformed, or asks for what is not served.
    """
    _refuse(fields)
    return ChatRequest(
        model=fields.model,
        messages=as_chat_messages(fields.instructions, fields.input),
        max_tokens=fields.max_output_tokens,
        temperature=fields.temperature,
        top_p=fields.top_p,
        stream=fields.stream,
        seed=fields.seed,
        response_format=_response_format(fields.text),
        tools=None if fields.tools is None else [_tool(index, tool) for index, tool in enumerate(fields.tools)],
        tool_choice=_tool_choice(fields.tool_choice),
        parallel_tool_calls=fields.parallel_tool_calls,
        chat_template_kwargs=_template_arguments(fields.reasoning),
        priority=fields.priority,
        cache_salt=fields.cache_salt,
    )


def _refuse(fields: ResponsesRequest) -> None:
    for name, why in _KEPT.items():
        if getattr(fields, name):
            raise InvalidRequestError(f"{name} is not supported. {why}", name)
    if fields.truncation not in (None, "disabled"):
        raise InvalidRequestError("truncation must be 'disabled': no part of the input is left out here.", "truncation")
    if _LOGPROBS in (fields.include or ()):
        raise InvalidRequestError(f"include {_LOGPROBS!r} is not supported.", "include")
    if fields.metadata is not None and not isinstance(fields.metadata, dict):
        raise InvalidRequestError("metadata must be an object.", "metadata")


def _tool(index: int, tool: Any) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if kind != "function":
        raise InvalidRequestError(
            f"tools[{index}] must be of type 'function', got {kind!r:.60}; tools that the server runs itself are not "
            "supported.",
            "tools",
        )
    given = {key: tool[key] for key in ("name", "description", "parameters", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": given}


def _tool_choice(choice: Any) -> Any:
    """In chat's form."""
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if kind == "allowed_tools":
        tools = choice.get("tools")
        listed = [_tool_choice(tool) for tool in tools] if isinstance(tools, list) else tools
        return {"type": kind, "allowed_tools": {"mode": choice.get("mode"), "tools": listed}}
    if isinstance(choice, Mapping):
        raise InvalidRequestError(f"tool_choice of type {choice.get('type')!r:.60} is not supported.", "tool_choice")
    return choice


def _template_arguments(reasoning: Any) -> dict[str, Any] | None:
    """An effort of none asks the chat template for no thinking; any other leaves the model to itself."""
    if not isinstance(reasoning, Mapping | None):
        raise InvalidRequestError("reasoning must be an object.", "reasoning")
    return {"enable_thinking": False} if reasoning and reasoning.get("effort") == "none" else None


def _response_format(text: Any) -> ResponseFormat | None:
    form = text.get("format") if isinstance(text, Mapping) else None
    if not isinstance(text, Mapping | None) or not isinstance(form, Mapping | None):
        raise InvalidRequestError("text must be an object, and its format too.", "text")
    if form is None:
        return None
    kind = form.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise InvalidRequestError(
            f"text.format.type must be text, json_object or json_schema, got {kind!r:.60}.", "text"
        )
    return ResponseFormat(type=kind, json_schema=JsonSchemaFormat(schema=form.get("schema")))
