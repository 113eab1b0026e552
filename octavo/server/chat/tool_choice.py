"""The tools of a chat request, and whether the model may, must or must not call one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from octavo.core.errors import InvalidRequestError
from octavo.server.state import ServerState

MAX_NAME_CHARACTERS = 256


class ToolFields(Protocol):
    """What a chat request says about tools."""

    tools: list[Any] | None
    tool_choice: Any
    parallel_tool_calls: bool | None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """``tools``: as the chat template gets them, empty where none may be called. ``name``: of the function that has to
    be called."""

    mode: Literal["none", "auto", "required", "named"] = "none"
    tools: Sequence[Mapping[str, Any]] = ()
    name: str | None = None

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool["function"]["name"] for tool in self.tools)

    @property
    def parameters(self) -> dict[str, Any]:
        """The schema of each function's parameters."""
        return {tool["function"]["name"]: tool["function"].get("parameters") for tool in self.tools}

    @property
    def is_forced(self) -> bool:
        return self.mode in ("required", "named")


def tool_use(state: ServerState, fields: ToolFields) -> ToolUse:
    """
    Raises:
        InvalidRequestError: malformed or too many tools, or a choice that they, or this server, do not allow.
    """
    tools, choice = fields.tools or [], fields.tool_choice
    shown = shown_tools(state, tools)
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        choice, shown = _allowed(choice, shown)
        tools = shown
    if choice == "none" or (not tools and choice in (None, "auto")):
        return ToolUse()
    if choice in (None, "auto"):
        _check_auto(state)
        return ToolUse("auto", shown)
    if not tools:
        raise InvalidRequestError("tool_choice needs tools to choose from.", "tool_choice")
    if choice == "required":
        return ToolUse("required", shown)
    name = _named(choice)
    if name not in {tool["function"]["name"] for tool in tools}:
        raise InvalidRequestError(f"tool_choice names {name!r:.80}, which is not among tools.", "tool_choice")
    return ToolUse("named", shown, name)


def _check_auto(state: ServerState) -> None:
    if not state.settings.enable_auto_tool_choice:
        raise InvalidRequestError(
            "tool_choice 'auto' is switched off on this server; choose 'required', 'none' or a function.", "tool_choice"
        )
    if state.dialect.tools is None:
        raise InvalidRequestError(
            "The model's chat template does not show how it writes tool calls, so tool_choice 'auto' needs a server "
            "started with --tool-call-parser; 'required' and a function's name work without.",
            "tool_choice",
        )


def _allowed(choice: Mapping[str, Any], tools: Sequence[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """The mode, and those of ``tools`` that it names; the model is told of no others."""
    allowed = choice.get("allowed_tools")
    mode = allowed.get("mode") if isinstance(allowed, Mapping) else None
    listed = allowed.get("tools") if isinstance(allowed, Mapping) else None
    if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
        raise InvalidRequestError(
            "tool_choice of type 'allowed_tools' needs allowed_tools with a mode, 'auto' or 'required', and tools.",
            "tool_choice",
        )
    names = {_named(each) for each in listed}
    missing = sorted(names - {tool["function"]["name"] for tool in tools})
    if missing:
        raise InvalidRequestError(f"tool_choice names {missing[0]!r:.80}, which is not among tools.", "tool_choice")
    return mode, [tool for tool in tools if tool["function"]["name"] in names]


def _named(choice: Any) -> str:
    function = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise InvalidRequestError(
            "tool_choice must be 'none', 'auto', 'required', {'type': 'function', 'function': {'name': ...}}, or "
            f"of type 'allowed_tools' with a list of such functions, got {choice!r:.80}.",
            "tool_choice",
        )
    return name


def shown_tools(state: ServerState, tools: Sequence[Any]) -> list[dict[str, Any]]:
    """The tools as the chat template gets them: as they were sent, but for marks that are for the cache.

    Raises:
        InvalidRequestError: malformed, or too many.
    """
    _check_tools(state, tools)
    return [{key: value for key, value in tool.items() if key != "cache_control"} for tool in tools]


def _check_tools(state: ServerState, tools: Sequence[Any]) -> None:
    limit = state.settings.limits.tools
    if len(tools) > limit:
        raise InvalidRequestError(f"tools may hold at most {limit} tools, got {len(tools)}.", "tools")
    for index, tool in enumerate(tools):
        _check_tool(f"tools[{index}]", tool)
    num_bytes_fit = state.engine.limits.max_model_len * max(1, state.longest_token_bytes)
    if tools and len(msgspec.json.encode(tools)) > num_bytes_fit:
        raise InvalidRequestError(
            f"The tools are longer than the {num_bytes_fit} bytes that could fit into "
            f"{state.engine.limits.max_model_len} tokens ({state.engine.limits.bound_by}).",
            "tools",
        )


def _check_tool(where: str, tool: Any) -> None:
    if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
        raise InvalidRequestError(f"{where} must be an object with type 'function' and a function.", "tools")
    function = tool["function"]
    name = function.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise InvalidRequestError(
            f"{where}.function.name must be a text of 1 to {MAX_NAME_CHARACTERS} characters.", "tools"
        )
    for key, kind, what in (
        ("description", str, "a text"),
        ("parameters", dict, "an object, a JSON schema"),
        ("strict", bool, "true or false"),
    ):
        if function.get(key) is not None and not isinstance(function[key], kind):
            raise InvalidRequestError(f"{where}.function.{key} must be {what}.", "tools")
