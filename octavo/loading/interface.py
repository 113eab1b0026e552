"""The tokenizer as the rest of Octavo sees it, whatever file it was built from."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class ChatText(NamedTuple):
    """A conversation as its template writes it. ``is_marked``: control text in messages is told from the template's."""

    text: str
    is_marked: bool


class Tokenizer(Protocol):
    """Text to ids and back.

    ``vocab_size``: ids 0 .. vocab_size - 1 exist in the tokenizer (the model may have more rows: spec D18).
    ``eos_token_ids``: union of config, generation_config and tokenizer (spec D7).
    ``special_token_ids``: control tokens, left out of text when skip_special_tokens.
    """

    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    special_token_ids: frozenset[int]
    has_chat_template: bool

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a raw prompt: control tokens written in the text are recognised; no second BOS (spec D17)."""
        ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text in mid-sentence (a leading space is kept; control tokens give their
        text; ids outside the vocabulary give b""). Concatenated over a text's tokens they decode to the text."""
        ...

    def template_source(self, for_tools: bool) -> str | None:
        """The chat template's Jinja text; ``for_tools``: of the one for conversations with tools."""
        ...

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Ids of a conversation. Control-token text inside message content is ordinary text (spec D16).

        Raises:
            InvalidRequestError: no template, or the template refused the messages (with its own words).
        """
        ...

    async def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> ChatText:
        """The first half of ``apply_chat_template``, for an event loop, which goes on meanwhile.

        Raises:
            InvalidRequestError: as ``apply_chat_template``.
        """
        ...

    def encode_chat(self, chat: ChatText) -> list[int]:
        """The second half."""
        ...
