"""What the text of an answer is read for: thinking, content, calls."""

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.core.structured import Thinking
from octavo.server.chat.forced_calls import forced_syntax
from octavo.server.chat.request import ChatRequest
from octavo.server.chat.tool_choice import ToolUse
from octavo.server.dialect import new_call_id
from octavo.server.prompts import Prompt, message_text
from octavo.server.reply import ReplyFormat, ToolFormat
from octavo.server.state import ServerState
from octavo.server.tools.form_or_calls import FormOrCalls

NUM_END_TOKENS = 16
"""Of the prompt, to see whether it ends inside the thinking; an opening mark and blanks have fewer."""

Messages = Sequence[Mapping[str, Any]]


def reply_format_of(
    state: ServerState, fields: ChatRequest, tools: ToolUse, messages: Messages, prompt: Prompt, has_form: bool
) -> ReplyFormat:
    """What the answer is to be read for. ``has_form``: a text that has to be of a form is what was asked for, whatever
    it looks like; before it there may be thinking, as far as that is not over."""
    marks = state.dialect.reasoning
    tool_format = _tool_format(state, fields, tools, has_form)
    if marks is None:
        return ReplyFormat(tool_format)
    if fields.continue_final_message:
        begun = message_text(messages[-1])
        is_open = marks.open_within(begun)
        is_over = bool(begun.strip()) and not is_open
    else:
        end = state.tokenizer.decode(prompt.token_ids[-NUM_END_TOKENS:], False)  # so few take less time than a thread
        is_open, is_over = marks.open_after(end), marks.closed_after(end)
    return ReplyFormat(tool_format, None if has_form and is_over else marks, is_open)


def thinking_before(reply_format: ReplyFormat) -> Thinking | None:
    """What may come before the form of an answer."""
    marks = reply_format.reasoning
    return None if marks is None else Thinking(marks.open, marks.close, reply_format.reasoning_is_open)


def _tool_format(state: ServerState, fields: ChatRequest, tools: ToolUse, has_form: bool) -> ToolFormat | None:
    known, is_parallel = state.dialect.tools, fields.may_call_several
    make_id = new_call_id if known is None else known.make_id
    if tools.is_forced:
        return ToolFormat(forced_syntax(tools), tools.names, make_id, is_parallel)
    if known is None or tools.mode == "none":
        return None
    syntax = FormOrCalls(known.syntax, known.openings) if has_form else known.syntax
    return ToolFormat(syntax, tools.parameters, make_id, is_parallel)
