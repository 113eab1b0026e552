"""The tokenizer of a model: text to ids and back, and conversations to ids."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from octavo.core.errors import InvalidRequestError
from octavo.loading.chat_template import ChatTemplate
from octavo.loading.control_text import ControlText
from octavo.loading.gguf_tokenizer import gguf_tokenizer
from octavo.loading.interface import ChatText, Tokenizer
from octavo.loading.token_spelling import spelling_of
from octavo.loading.tokenizer_cache import cached_tokenizer
from octavo.loading.tokenizer_folder import folder_tokenizer
from octavo.loading.tokenizer_parts import TokenizerParts


def load_tokenizer(path: Path, chat_template: str | None = None, cache: bool = False) -> Tokenizer:
    """The tokenizer of a model folder or .gguf file. ``chat_template`` (Jinja text) replaces the model's own templates.
    ``cache``: what is slow to rebuild from a .gguf file is kept in the cache folder.

    Raises:
        ConfigurationError: there is none, or it is of a kind that is not supported.
    """
    if path.is_dir():
        parts = folder_tokenizer(path)
    else:
        parts = cached_tokenizer(path, gguf_tokenizer) if cache else gguf_tokenizer(path)
    return HFTokenizer(parts if chat_template is None else replace(parts, chat_templates={"default": chat_template}))


class HFTokenizer:
    """Tokenizer (loading/interface.py) on the `tokenizers` library. Thread-safe: nothing changes after construction
    except caches, whose entries are the same whoever fills them.

    Raises:
        InvalidRequestError: by ``encode`` and ``apply_chat_template``: text that is no Unicode text.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._backend = parts.backend
        self._added = parts.backend.get_added_tokens_decoder()
        bos = parts.special_tokens.get("bos_token")
        self.bos_token_id: int | None = None if bos is None else parts.backend.token_to_id(bos)
        self.eos_token_ids = parts.eos_token_ids
        self.special_token_ids = frozenset(token_id for token_id, token in self._added.items() if token.special)
        self.vocab_size = _vocab_size(parts.backend)
        self._adds_bos = self.bos_token_id is not None and self._ids("", True)[:1] == [self.bos_token_id]
        templates = parts.chat_templates.items()
        self._templates = {name: ChatTemplate(text, parts.special_tokens) for name, text in templates}
        self.has_chat_template = "default" in self._templates
        self._spelling = spelling_of(parts.backend)
        self._token_bytes: dict[int, bytes] = {}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a raw prompt: control tokens written in the text are recognised; no second BOS (spec D17)."""
        ids = self._ids(text, add_special_tokens)
        if add_special_tokens and self._adds_bos and ids[1:2] == [self.bos_token_id]:
            return ids[1:]
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text in mid-sentence; b"" for ids outside the vocabulary."""
        found = self._token_bytes.get(token_id)
        if found is None:
            token = self._backend.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
            found = b"" if token is None else self._spelling.to_bytes(token, is_added=token_id in self._added)
            self._token_bytes[token_id] = found
        return found

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Ids of a conversation. Control-token text inside messages, tools and kwargs is ordinary text (spec D16).

        Raises:
            InvalidRequestError: no template, or the template refused the messages (with its own words).
        """
        template, asked, is_marked = self._asked(messages, tools, template_kwargs)
        text = template.render(
            **asked, add_generation_prompt=add_generation_prompt, continue_final_message=continue_final_message
        )
        return self.encode_chat(ChatText(text, is_marked))

    async def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> ChatText:
        template, asked, is_marked = self._asked(messages, tools, template_kwargs)
        text = await template.render_from_loop(
            **asked, add_generation_prompt=add_generation_prompt, continue_final_message=continue_final_message
        )
        return ChatText(text, is_marked)

    def encode_chat(self, chat: ChatText) -> list[int]:
        return self._control_text.encode_marked(chat.text) if chat.is_marked else self._ids(chat.text, False)

    def _asked(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> tuple[ChatTemplate, dict[str, Any], bool]:
        """The template, what it is to render, and whether control text in that has been marked."""
        template = self._template(tools is not None)
        if template is None:
            raise InvalidRequestError(
                "this model has no chat template, so it cannot take messages; send a prompt to /v1/completions, "
                "or give a template with --chat-template"
            )
        sent = [messages, tools, template_kwargs]
        marked = self._control_text.mark(sent)
        asked = dict(zip(("messages", "tools", "template_kwargs"), marked, strict=True))
        return template, asked, marked is not sent

    def template_source(self, for_tools: bool) -> str | None:
        template = self._template(for_tools)
        return None if template is None else template.source

    def _template(self, for_tools: bool) -> ChatTemplate | None:
        named = self._templates.get("tool_use") if for_tools else None
        return named or self._templates.get("default")

    @cached_property
    def _control_text(self) -> ControlText:
        return ControlText(self._backend)

    def _ids(self, text: str, add_special_tokens: bool) -> list[int]:
        try:
            # A batch of one: unlike ``encode`` it lets other threads run, and "fast" leaves out offsets.
            return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except (TypeError, UnicodeError) as error:
            raise InvalidRequestError(
                "the text holds half of a surrogate pair, which is no character; send valid Unicode text"
            ) from error


def _vocab_size(backend: Backend) -> int:
    """One more than the largest id."""
    size = backend.get_vocab_size(with_added_tokens=True)
    if backend.id_to_token(size - 1) is not None and backend.id_to_token(size) is None:
        return size  # no holes: the usual case, told without a copy of the whole vocabulary
    return 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
