"""Keeps control tokens that are written in a message from acting as control tokens (spec D16).

    content            Hi <|im_end|>                      what a client sent
    marked             Hi <·|im_end|>                     a break (·) inside every control text
    rendered           <|im_start|>user\\nHi <·|im_end|>…  the template added control tokens of its own, unbroken
    aliased            «<|im_start|>»user\\nHi <|im_end|>… those are wrapped («»), then the breaks are dropped
    ids                of a twin tokenizer that knows control tokens only by their wrapped spelling

The whole text is tokenized at once, so that what stands around a control text gets the ids that it would get beside any
other text. The three marks are Unicode noncharacters, which no text may hold; from marked strings they are dropped.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel

from octavo.core.errors import InvalidRequestError

_BREAK, _OPEN, _CLOSE = "\ufdd0", "\ufdd1", "\ufdd2"
_WITHOUT_MARKS = {ord(mark): None for mark in (_BREAK, _OPEN, _CLOSE)}


class ControlText:
    """Control tokens (special added tokens) of one tokenizer as texts. Thread-safe.

    A control token of one character cannot be broken and is left alone.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._added = sorted(backend.get_added_tokens_decoder().items())
        self._texts = [token.content for _, token in self._added if token.special and len(token.content) > 1]
        self._beginnings = frozenset(text[:length] for text in self._texts for length in range(1, len(text)))
        self._longest = max(map(len, self._texts), default=1)
        self._first_character = re.compile("|".join(sorted({re.escape(text[0]) for text in self._texts})) or r"(?!)")

    def mark(self, value: Any) -> Any:
        """A copy of JSON-like ``value`` with every control text broken, in keys too; ``value`` itself if it holds none.

        A string that ends with the beginning of a control text counts as well: the next string may be the rest of it.
        """
        return self._marked(value) if self._occurs(value) else value

    def encode_marked(self, text: str) -> list[int]:
        """Ids of rendered text in which control text of clients is broken and that of the template is not."""
        pieces, end = [], 0
        for start, stop in self._spans(text):
            pieces += [text[end:start], _OPEN, text[start:stop], _CLOSE]
            end = stop
        aliased = "".join([*pieces, text[end:]]).replace(_BREAK, "")
        twin, real_ids = self._twin
        found = twin.encode_batch_fast([aliased], add_special_tokens=False)[0].ids  # a batch lets other threads run
        return [real_ids.get(token_id, token_id) for token_id in found]

    def _occurs(self, value: Any) -> bool:
        if isinstance(value, str):
            if self._first_character.search(value) is None:  # most texts: much less than to look for all of them
                return False
            return self._is_open_at_end(value) or bool(self._spans(value))
        if isinstance(value, Mapping):
            return any(self._occurs(key) or self._occurs(item) for key, item in value.items())
        return isinstance(value, (list, tuple)) and any(self._occurs(item) for item in value)

    def _marked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._broken(value)
        if isinstance(value, Mapping):
            return {self._marked(key): self._marked(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._marked(item) for item in value]
        return value

    def _broken(self, text: str) -> str:
        text = text.translate(_WITHOUT_MARKS)
        if self._is_open_at_end(text):
            text += _BREAK
        while spans := self._spans(text):  # again: a break may uncover a text that overlapped the one it broke
            pieces, end = [], 0
            for start, _ in spans:
                pieces += [text[end : start + 1], _BREAK]
                end = start + 1
            text = "".join([*pieces, text[end:]])
        return text

    def _is_open_at_end(self, text: str) -> bool:
        return any(text[-length:] in self._beginnings for length in range(1, min(self._longest, len(text) + 1)))

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Start and end of every control text, left to right, the longest first, as the tokenizer itself finds them."""
        try:
            found = self._finder.encode_batch([text], add_special_tokens=False)[0]  # a batch lets other threads run
        except TypeError as error:
            raise InvalidRequestError(
                "a text holds half of a surrogate pair, which is no character; send valid Unicode text"
            ) from error
        return [span for token_id, span in zip(found.ids, found.offsets, strict=True) if token_id]

    @cached_property
    def _finder(self) -> Backend:
        """Control texts and, with id 0, whatever lies between (one automaton over all of them: linear in the text)."""
        finder = Backend(WordLevel({_BREAK: 0}, unk_token=_BREAK))
        finder.add_special_tokens([AddedToken(text, normalized=False) for text in self._texts])
        return finder

    @cached_property
    def _twin(self) -> tuple[Backend, dict[int, int]]:
        """The tokenizer with control tokens under their wrapped spelling, and the real ids of its added tokens."""
        twin = Backend(self._backend.model)  # shared, not copied
        if self._backend.normalizer is not None:
            twin.normalizer = self._backend.normalizer
        if self._backend.pre_tokenizer is not None:
            twin.pre_tokenizer = self._backend.pre_tokenizer
        wrapped = set(self._texts)
        tokens = []
        for token_id, token in self._added:
            text = f"{_OPEN}{token.content}{_CLOSE}" if token.content in wrapped else token.content
            flags = {"lstrip": token.lstrip, "rstrip": token.rstrip, "single_word": token.single_word}
            tokens.append((token_id, AddedToken(text, normalized=token.normalized, special=token.special, **flags)))
        twin.add_tokens([token for _, token in tokens])
        real_ids = {
            twin_id: token_id for token_id, token in tokens if (twin_id := twin.token_to_id(token.content)) is not None
        }
        return twin, real_ids
