"""From what a client sends to token ids, off the event loop."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from octavo.core.errors import InvalidRequestError, TooLongError
from octavo.core.token_ids import check_token_ids
from octavo.server.state import ServerState

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prompt:
    """``text`` is None where the client sent ids."""

    token_ids: list[int]
    text: str | None = None


INLINE_BYTES = 2048
"""Texts up to this size are read on the event loop: it takes less time than handing them to a thread, which has to wait
for the interpreter where the loop has work."""


INLINE_CHAT_BYTES = 8192
"""Conversations up to this size, with their tools, are given to the template from the event loop."""


async def in_text_thread(state: ServerState, work: Callable[[], T]) -> T:
    """The result of what may take long, and is not waiting."""
    return await asyncio.get_running_loop().run_in_executor(state.text_threads, work)


PromptItem = str | list[Any]
"""One prompt as the client sent it, not yet looked into."""


def split_prompts(state: ServerState, prompt: Any, n: int) -> list[PromptItem]:
    """The prompts of the ``prompt`` field: a text, ids, or a list of either. ``n``: choices of each.

    Raises:
        InvalidRequestError: not of these forms, none, or too many.
    """
    limits = state.settings.limits
    items = _split(prompt, limits.prompts)
    if len(items) * n > limits.choices:
        raise InvalidRequestError(
            f"{len(items)} prompts with n {n} are {len(items) * n} choices; a request may have {limits.choices}. "
            "Send fewer prompts a request, or a smaller n.",
            "n",
        )
    return items


def fewest_tokens(state: ServerState, items: Sequence[PromptItem], truncate: int | None = None) -> int:
    """A number of tokens that these prompts have at least, known without tokenizing them."""
    counts = (_fewest_in(state, item) for item in items)
    return sum(counts if truncate is None else (min(count, truncate) for count in counts))


def _fewest_in(state: ServerState, item: Any) -> int:
    return _fewest_in_text(state, item) if isinstance(item, str) else _size(item)


def _fewest_in_text(state: ServerState, text: str) -> int:
    return _num_bytes(text) // max(1, state.longest_token_bytes)


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


async def encode_prompts(
    state: ServerState, items: Sequence[PromptItem], *, add_special_tokens: bool = True, truncate: int | None = None
) -> list[Prompt]:
    """Split prompts as token ids; ids are taken as they are (spec D17).

    Raises:
        InvalidRequestError: empty, too long, or an id outside the vocabulary.
    """

    def encode_all() -> list[Prompt]:
        return [_encode(state, item, add_special_tokens, truncate) for item in items]

    if sum(_size(item) for item in items) <= INLINE_BYTES:
        return encode_all()
    return await in_text_thread(state, encode_all)


def _size(item: Any) -> int:
    """Bytes of a text, or the number of ids."""
    if isinstance(item, str):
        return _num_bytes(item)
    return len(item) if isinstance(item, list) else 0  # what is neither is refused when it is looked into


def _split(prompt: Any, limit: int) -> list[PromptItem]:
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise InvalidRequestError("prompt must be a text, token ids, or a non-empty list of either.", "prompt")
    if type(prompt[0]) is int:
        return [prompt]
    if len(prompt) > limit:
        raise InvalidRequestError(f"prompt may hold at most {limit} prompts, got {len(prompt)}.", "prompt")
    if len(set(map(type, prompt))) > 1:
        raise InvalidRequestError("prompt must hold texts or lists of token ids, not both.", "prompt")
    return prompt


def _encode(state: ServerState, item: Any, add_special_tokens: bool, truncate: int | None) -> Prompt:
    if isinstance(item, str):
        if truncate is None:
            _check_text_length(state, item)
        else:
            _check_truncated(state, item)
        prompt = Prompt(state.tokenizer.encode(item, add_special_tokens), item)
    elif isinstance(item, list) and set(map(type, item)) <= {int}:
        check_token_ids("prompt", item, state.engine.limits.vocab_size)
        prompt = Prompt(item)
    else:
        raise InvalidRequestError("prompt must hold texts or whole token ids, nothing else.", "prompt")
    if truncate is not None:
        prompt = Prompt(prompt.token_ids[-truncate:])
    check_length(state, prompt.token_ids, "prompt")
    return prompt


def _check_text_length(state: ServerState, text: str) -> None:
    """Refuse a text that cannot fit, whatever its tokens, without spending minutes on tokenizing it."""
    limit = state.engine.limits.max_model_len
    num_bytes, fewest = _num_bytes(text), _fewest_in_text(state, text)
    if fewest >= limit:
        raise _too_long(state, f"the prompt of {num_bytes} bytes has at least {fewest}", "prompt")


def _check_truncated(state: ServerState, text: str) -> None:
    """A text that is going to be cut may be longer than what fits, and yet not so long that it keeps others waiting."""
    fitting = state.engine.limits.max_model_len * max(1, state.longest_token_bytes)
    limit = max(state.settings.limits.truncated_text_bytes, fitting)
    num_bytes = _num_bytes(text)
    if num_bytes > limit:
        raise InvalidRequestError(
            f"The prompt has {num_bytes} bytes; with truncate_prompt_tokens the limit is {limit}.", "prompt"
        )


def check_length(state: ServerState, token_ids: Sequence[int], param: str) -> None:
    """
    Raises:
        InvalidRequestError: no token to start from, or no room for one more.
    """
    limit = state.engine.limits.max_model_len
    if not token_ids:
        raise InvalidRequestError("The prompt is empty; at least one token is needed to start from.", param)
    if len(token_ids) >= limit:
        raise _too_long(state, f"the prompt has {len(token_ids)}", param)


def _too_long(state: ServerState, found: str, param: str) -> TooLongError:
    """In words by which clients know such an error: Anthropic's, then OpenAI's."""
    limits = state.engine.limits
    return TooLongError(
        f"The prompt is too long: this model's maximum context length is {limits.max_model_len} tokens "
        f"({limits.bound_by}), one of them to generate, but {found}.",
        param,
    )


async def encode_text(state: ServerState, text: str, add_special_tokens: bool) -> Prompt:
    """One text, of any number of tokens up to what could ever fit.

    Raises:
        InvalidRequestError: far too long.
    """
    _check_text_length(state, text)
    return Prompt(await in_text_thread(state, lambda: state.tokenizer.encode(text, add_special_tokens)), text)


class TemplateFields(Protocol):
    """What a request says about its chat template."""

    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None


def template_options(fields: TemplateFields, tools: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Keyword arguments of Tokenizer.apply_chat_template; ``tools``: those that the model is told of.

    Raises:
        InvalidRequestError: options that contradict each other, or a template in the request (spec D21).
    """
    if fields.chat_template is not None:
        raise InvalidRequestError("chat_template in requests is off; the model's own is used.", "chat_template")
    if fields.continue_final_message and fields.add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt cannot both be true.", "continue_final_message"
        )
    continues = bool(fields.continue_final_message)
    return {
        "tools": tools or None,
        "add_generation_prompt": not continues and fields.add_generation_prompt is not False,
        "continue_final_message": continues,
        "template_kwargs": fields.chat_template_kwargs,
    }


def check_messages(state: ServerState, messages: Sequence[Any]) -> int:
    """How many bytes of text they hold, tool calls left out.

    Raises:
        InvalidRequestError: none, too many, malformed ones, or more text than could ever fit.
    """
    limit = state.settings.limits.messages
    if not messages:
        raise InvalidRequestError("messages must hold at least one message.", "messages")
    if len(messages) > limit:
        raise InvalidRequestError(f"messages may hold at most {limit} messages, got {len(messages)}.", "messages")
    for index, message in enumerate(messages):
        _check_message(index, message)
    num_bytes = sum(_num_bytes(message_text(message)) for message in messages)
    num_call_bytes = sum(
        len(msgspec.json.encode(message["tool_calls"])) for message in messages if "tool_calls" in message
    )
    num_bytes_fit = state.engine.limits.max_model_len * max(1, state.longest_token_bytes)
    if num_bytes + num_call_bytes > num_bytes_fit:
        raise InvalidRequestError(
            f"The messages hold more than the {num_bytes_fit} bytes that could fit into "
            f"{state.engine.limits.max_model_len} tokens ({state.engine.limits.bound_by}).",
            "messages",
        )
    return num_bytes


def fewest_message_tokens(state: ServerState, num_bytes: int, truncate: int | None = None) -> int:
    """A number of tokens that checked messages with ``num_bytes`` of text have at least, known without tokenizing."""
    count = num_bytes // max(1, state.longest_token_bytes)
    return count if truncate is None else min(count, truncate)


async def encode_messages(state: ServerState, messages: Sequence[Any], options: Mapping[str, Any]) -> Prompt:
    """A checked conversation through the model's chat template; ``options``: see Tokenizer.apply_chat_template.

    Raises:
        InvalidRequestError: no template, or a template that refuses them.
    """
    tokenizer = state.tokenizer
    if len(msgspec.json.encode((messages, options))) > INLINE_CHAT_BYTES:
        return Prompt(await in_text_thread(state, partial(tokenizer.apply_chat_template, messages, **options)))
    async with state.template_turns:
        chat = await tokenizer.render_chat(messages, **options)
    if _num_bytes(chat.text) <= INLINE_BYTES:
        return Prompt(tokenizer.encode_chat(chat))
    return Prompt(await in_text_thread(state, partial(tokenizer.encode_chat, chat)))


def _check_message(index: int, message: Any) -> None:
    where = f"messages[{index}]"
    if not isinstance(message, dict):
        raise InvalidRequestError(f"{where} must be an object with role and content.", "messages")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequestError(f"{where}.role must be a non-empty string.", "messages")
    content = message.get("content")
    if content is None:
        if role != "assistant" or not message.get("tool_calls"):
            raise InvalidRequestError(f"{where}.content must be a text or a list of text parts.", "messages")
    elif isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                kind = part.get("type") if isinstance(part, dict) else None
                raise InvalidRequestError(
                    f"{where}.content may hold parts of type 'text' with a text only, got {kind!r:.40}.", "messages"
                )
    elif not isinstance(content, str):
        raise InvalidRequestError(f"{where}.content must be a text or a list of text parts.", "messages")


def message_text(message: Mapping[str, Any]) -> str:
    """The text of a message's content, parts joined."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""
