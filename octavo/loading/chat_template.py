"""Conversations to text, by the template that came with the model.

Templates are Jinja programs from outside. They run in a process of their own (template_worker.py), sandboxed, bounded
in time and memory, on a copy of the messages. What they see is what transformers shows them, so that published
templates give the published text (source: transformers 5.x, ``apply_chat_template``).
"""

import signal
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.core.errors import InvalidRequestError
from octavo.worker_processes import WorkerEndedError, WorkerProcesses

RENDER_SECONDS = 3.0
RENDER_NUM_CHARS = 32 << 20
RENDER_NUM_BYTES = 1 << 30

_WORKER = Path(__file__).with_name("template_worker.py")
_RESERVED_NAMES = frozenset(
    {"messages", "conversation", "tools", "add_generation_prompt", "continue_final_message", "tokenize"}
    | {"chat_template", "padding", "truncation", "max_length", "return_tensors", "return_dict"}
    | {"return_assistant_tokens_mask", "sanitize_control_tokens", "tokenizer_kwargs"}
)
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_PROBE = "octavo probe"

_Ask = Callable[[object], Awaitable[Any]]
"""Variables to the answer of a worker."""


class ChatTemplate:
    """One template and the processes that render it. Thread-safe.

    Args:
        source: the Jinja text. It is compiled at the first rendering, so that a broken template fails chats only.
        special_tokens: variables such as bos_token, by name.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        settings = {
            "template": source,
            "seconds": RENDER_SECONDS,
            "num_chars": RENDER_NUM_CHARS,
            "num_bytes": RENDER_NUM_BYTES,
        }
        self._reads_parts: bool | None = None
        self._workers = WorkerProcesses([str(_WORKER)], lambda: settings)
        weakref.finalize(self, self._workers.close)

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """The text of a conversation. ``options``: those of ``Tokenizer.apply_chat_template``; with
        ``continue_final_message`` the text ends where the last message's content ends.

        Raises:
            InvalidRequestError: the template refused (its own words), failed, or took too long or too much memory;
                or the messages cannot be rendered at all.
        """

        async def ask(variables: object) -> Any:
            return self._workers.ask(variables)

        return _without_waiting(self._render(ask, messages, **options))

    async def render_from_loop(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """As ``render``, for an event loop, which goes on meanwhile."""
        return await self._render(self._workers.ask_from_loop, messages, **options)

    async def _render(
        self,
        ask: _Ask,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        kwargs = dict(template_kwargs or {})
        if taken := sorted(_RESERVED_NAMES & kwargs.keys()):
            raise InvalidRequestError(
                f"chat_template_kwargs cannot set {', '.join(taken)}: the server sets it itself; leave it out",
                param="chat_template_kwargs",
            )
        if continue_final_message and add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message and add_generation_prompt cannot both be true; set one of them to false",
                param="continue_final_message",
            )
        chat = await self._prepare(ask, messages)
        final = _tag_final_message(chat) if continue_final_message else ""
        variables = {
            "documents": None,
            **self._special_tokens,
            **kwargs,
            "messages": chat,
            "tools": list(tools) if tools is not None else None,
            "add_generation_prompt": add_generation_prompt,
        }
        run = _run_with_calls if any(map(_is_calls_alone, chat)) else _run
        text = await run(ask, variables)
        return _cut_at_tag(text, final) if continue_final_message else text

    async def _prepare(self, ask: _Ask, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """A copy of the messages as templates expect them (keys with None are left out, as in transformers)."""
        if not messages:
            raise InvalidRequestError("messages is empty; give at least one message", param="messages")
        chat = []
        message: Any
        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise InvalidRequestError(
                    f"a message must be an object with role and content, got {message!r:.80}", param="messages"
                )
            copy = {key: value for key, value in message.items() if value is not None}
            if isinstance(copy.get("content"), (list, tuple)):
                copy["content"] = await self._content_parts(ask, copy["content"])
            reasoning = next((copy[field] for field in _REASONING_FIELDS if field in copy), None)
            if reasoning is not None:
                copy = {"thinking": reasoning, **copy, "reasoning_content": reasoning}
            chat.append(copy)
        return chat

    async def _content_parts(self, ask: _Ask, parts: Sequence[Any]) -> str | list[dict[str, Any]]:
        """Parts of a content: as they are for a template that reads parts, otherwise one string, a line a part."""
        for part in parts:
            if not isinstance(part, Mapping) or not isinstance(part.get("text"), str) or part.get("type") != "text":
                kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
                raise InvalidRequestError(
                    f"a content part of type {kind!r} cannot be used: this model reads parts of type 'text'",
                    param="messages",
                )
        if self._reads_parts is None:
            self._reads_parts = await self._try_parts(ask)
        if self._reads_parts:
            return [dict(part) for part in parts]
        return "\n".join(part["text"] for part in parts)

    async def _try_parts(self, ask: _Ask) -> bool:
        """Whether the template takes the text out of content parts (tried out: there is no declaration of it)."""
        message = {"role": "user", "content": [{"type": "text", "text": _PROBE}]}
        variables = {"messages": [message], "tools": None, "documents": None, "add_generation_prompt": True}
        try:
            text = await _run(ask, {**self._special_tokens, **variables})
        except InvalidRequestError:
            return False
        return _PROBE in text and "'type'" not in text and '"type"' not in text


async def _run_with_calls(ask: _Ask, variables: Mapping[str, Any]) -> str:
    """Of a conversation with calls that have no content beside them. A template that knows no calls adds up texts,
    so where it fails it gets an empty one."""
    try:
        return await _run(ask, variables)
    except InvalidRequestError as error:
        chat = [{**each, "content": ""} if _is_calls_alone(each) else each for each in variables["messages"]]
        try:
            return await _run(ask, {**variables, "messages": chat})
        except InvalidRequestError:
            raise error from None


async def _run(ask: _Ask, variables: Mapping[str, Any]) -> str:
    try:
        answer: dict[str, str] = await ask(variables)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the messages are not plain JSON: {error}", param="messages") from error
    except WorkerEndedError as ended:
        raise InvalidRequestError(
            f"the chat template failed: {_why_ended(ended.returncode)}", param="messages"
        ) from None
    if "error" in answer:
        raise InvalidRequestError(f"the chat template failed: {answer['error']}", param="messages")
    return answer["text"]


def _without_waiting(work: Coroutine[Any, Any, str]) -> str:
    """The result of what awaits nothing that has to be waited for."""
    try:
        work.send(None)
    except StopIteration as end:
        text: str = end.value
        return text
    raise AssertionError("what is asked in this thread has its answer at once")


def _why_ended(returncode: int) -> str:
    if returncode == -signal.SIGALRM:
        return f"it took longer than {RENDER_SECONDS:g} s"
    return f"its process ended with code {returncode} (it needed too much memory or nested too deeply)"


def _is_calls_alone(message: Mapping[str, Any]) -> bool:
    return "tool_calls" in message and "content" not in message


def _tag_final_message(chat: list[dict[str, Any]]) -> str:
    """Marks the end of the last message's content; returns that content (of parts: the last one)."""
    content = chat[-1].get("content")
    if isinstance(content, str):
        chat[-1]["content"] = content + _CONTINUE_TAG
        return content
    if isinstance(content, list) and content:
        text = str(content[-1]["text"])
        content[-1]["text"] = text + _CONTINUE_TAG
        return text
    raise InvalidRequestError("continue_final_message needs a last message with content to continue", param="messages")


def _cut_at_tag(text: str, final: str) -> str:
    """The rendered text up to the tag. If the template trimmed the blank of the tag, blanks go too."""
    tag = _CONTINUE_TAG.strip()
    if final.strip() not in text or tag not in text:
        raise InvalidRequestError(
            "continue_final_message cannot be used here: the chat template does not show the last message as it is",
            param="continue_final_message",
        )
    at = text.rindex(tag)
    return text[:at] if text[at : at + len(_CONTINUE_TAG)] == _CONTINUE_TAG else text[:at].rstrip()
