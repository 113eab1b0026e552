"""Which tokens of a conversation come before a place in it that its sender has marked."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from octavo.core.errors import InvalidRequestError
from octavo.loading.interface import Tokenizer

_WORDS = ("a", "b")


class Place(NamedTuple):
    """The end of message ``message`` (None: of the tools), or, of its content, of part ``part``."""

    message: int | None
    part: int | None = None


def num_tokens_before(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    place: Place,
    token_ids: Sequence[int],
    options: Mapping[str, Any],
) -> int:
    """How many of the first ``token_ids``, which are those of ``messages`` with these ``options`` of
    ``Tokenizer.apply_chat_template``, come before ``place``; 0 where the chat template cannot show it.

    At the end of all it is every token. Elsewhere two made-up conversations are the same up to the place and differ
    right after it, each by a word; what they have in common with the given one comes before it. So a token to which
    what follows has added is not among them.
    """
    if place == Place(len(messages) - 1):
        return len(token_ids)
    options = {**options, "add_generation_prompt": False, "continue_final_message": False}
    try:
        made_up = [tokenizer.apply_chat_template(_continued(messages, place, word), **options) for word in _WORDS]
    except InvalidRequestError:
        return 0
    return sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, zip(token_ids, *made_up, strict=False)))


def _continued(messages: Sequence[Mapping[str, Any]], place: Place, word: str) -> list[Mapping[str, Any]]:
    """The conversation up to the place, and then a word of whoever spoke there."""
    if place.message is None:  # templates show tools with the system message, or before it
        head = [messages[0]] if messages[0]["role"] == "system" else []
        return [*head, {"role": "user", "content": word}]
    message = messages[place.message]
    if place.part is not None and place.part + 1 < len(message["content"]):
        parts = [*message["content"][: place.part + 1], {"type": "text", "text": word}]
        return [*messages[: place.message], {**message, "content": parts}]
    following = messages[place.message + 1 : place.message + 2]
    role = following[0]["role"] if following else "user"
    return [*messages[: place.message + 1], {"role": role, "content": word}]
