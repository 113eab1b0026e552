"""The fields of a chat request."""

from typing import Any

from octavo.server.sampling import Int64, SamplingFields


class ChatRequest(SamplingFields, kw_only=True):
    messages: list[Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    max_completion_tokens: Int64 | None = None
    logprobs: bool | None = None
    top_logprobs: Int64 | None = None
    cache_control: Any = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: Any = None

    @property
    def most_tokens(self) -> int | None:
        """Of an answer; None means the room left (spec D28)."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def may_call_several(self) -> bool:
        return self.parallel_tool_calls is not False
