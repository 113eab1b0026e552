"""A request in Anthropic's form to one as chat takes it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.core.errors import InvalidRequestError
from octavo.server.chat.request import ChatRequest
from octavo.server.messages.turns import as_chat_messages
from octavo.server.sampling import Int64, JsonSchemaFormat, ResponseFormat

FIELD_NAMES = {"stop": "stop_sequences", "response_format": "output_config", "continue_final_message": "messages"}
"""From chat's name of a field to the one it has here, where they differ."""

_THINKING = {"enabled": True, "adaptive": True, "disabled": False}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class CountRequest(msgspec.Struct, kw_only=True):
    """What of a request makes its prompt."""

    model: str | None = None
    messages: list[Any] | None = None
    system: Any = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    thinking: Any = None


class MessagesRequest(CountRequest, kw_only=True):
    """Anthropic's fields, and of Octavo's own ``priority`` and ``cache_salt``."""

    max_tokens: Int64 | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    output_config: Any = None
    cache_control: Any = None
    container: Any = None
    mcp_servers: Any = None
    priority: Int64 | None = None
    cache_salt: str | None = None


def as_chat_request(fields: MessagesRequest) -> ChatRequest:
    """
    Raises:
        InvalidRequestError: a field that is missing, malformed, or asks for what is not served.
    """
    if fields.max_tokens is None:
        raise InvalidRequestError("max_tokens is needed.", "max_tokens")
    for name in ("container", "mcp_servers"):
        if getattr(fields, name):
            raise InvalidRequestError(f"{name} is not supported: nothing is run on this server.", name)
    chat = as_chat_prompt(fields)
    chat.max_tokens = fields.max_tokens
    chat.stop = fields.stop_sequences
    chat.response_format = _response_format(fields.output_config)
    for name in ("stream", "temperature", "top_p", "top_k", "cache_control", "priority", "cache_salt"):
        setattr(chat, name, getattr(fields, name))
    return chat


def as_chat_prompt(fields: CountRequest) -> ChatRequest:
    """As much of the request as makes the prompt. A last message of the assistant's is gone on with.

    Raises:
        InvalidRequestError: a malformed field.
    """
    if not fields.messages:
        raise InvalidRequestError("messages needs at least one message; system alone is no conversation.", "messages")
    messages = as_chat_messages(fields.system, fields.messages)
    choice, is_parallel = _tool_choice(fields.tool_choice)
    return ChatRequest(
        model=fields.model,
        messages=messages,
        tools=None if fields.tools is None else [_tool(index, tool) for index, tool in enumerate(fields.tools)],
        tool_choice=choice,
        parallel_tool_calls=is_parallel,
        continue_final_message=bool(messages) and messages[-1]["role"] == "assistant",
        chat_template_kwargs=_template_arguments(fields.thinking),
    )


def _tool(index: int, tool: Any) -> dict[str, Any]:
    where = f"tools[{index}]"
    if not isinstance(tool, Mapping):
        raise InvalidRequestError(f"{where} must be an object with name and input_schema.", "tools")
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise InvalidRequestError(
            f"{where} is of type {kind!r:.60}, which is run by Anthropic's servers; only tools of the client's own, of "
            "type 'custom', are known here.",
            "tools",
        )
    if not isinstance(tool.get("input_schema"), dict):
        raise InvalidRequestError(f"{where}.input_schema must be a JSON schema, an object.", "tools")
    function = {"name": tool.get("name"), "parameters": tool["input_schema"]}
    function |= {key: tool[key] for key in ("description", "strict") if tool.get(key) is not None}
    mark = tool.get("cache_control")
    return {"type": "function", "function": function} | ({} if mark is None else {"cache_control": mark})


def _tool_choice(choice: Any) -> tuple[Any, bool | None]:
    """In chat's form, and whether calls may be parallel."""
    if choice is None:
        return None, None
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if not isinstance(kind, str) or kind not in (*_CHOICES, "tool"):
        raise InvalidRequestError(
            f"tool_choice.type must be one of {', '.join(_CHOICES)} or tool, got {choice!r:.80}.", "tool_choice"
        )
    is_single = choice.get("disable_parallel_tool_use")
    if not isinstance(is_single, bool | None):
        raise InvalidRequestError("tool_choice.disable_parallel_tool_use must be true or false.", "tool_choice")
    is_parallel = None if is_single is None else not is_single
    if kind != "tool":
        return _CHOICES[kind], is_parallel
    if not isinstance(choice.get("name"), str):
        raise InvalidRequestError("tool_choice.name must be the name of a tool.", "tool_choice")
    return {"type": "function", "function": {"name": choice["name"]}}, is_parallel


def _template_arguments(thinking: Any) -> dict[str, Any] | None:
    """``enable_thinking`` is what templates call it that can do with and without."""
    if thinking is None:
        return None
    kind = thinking.get("type") if isinstance(thinking, Mapping) else None
    if not isinstance(kind, str) or kind not in _THINKING:
        raise InvalidRequestError(
            f"thinking.type must be one of {', '.join(_THINKING)}, got {thinking!r:.80}.", "thinking"
        )
    return {"enable_thinking": _THINKING[kind]}


def _response_format(config: Any) -> ResponseFormat | None:
    form = config.get("format") if isinstance(config, Mapping) else None
    if not isinstance(config, Mapping | None) or not isinstance(form, Mapping | None):
        raise InvalidRequestError("output_config must be an object, and its format too.", "output_config")
    if form is None:
        return None
    if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        raise InvalidRequestError("output_config.format must be of type 'json_schema', with a schema.", "output_config")
    return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=form["schema"]))
