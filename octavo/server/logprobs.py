"""Logprobs in the three shapes that clients know: completions, chat, and vLLM's prompt_logprobs."""

import codecs
from collections.abc import Collection, Sequence
from typing import Any

from octavo.core.step import TokenLogprobs
from octavo.loading.interface import Tokenizer

LOWEST = -9999.0
"""Written in place of minus infinity, which JSON cannot hold (spec D9)."""


def finite(logprob: float) -> float:
    return max(logprob, LOWEST)


class TokenWriter:
    """Tokens as text and bytes. ``hide_special``: control tokens add nothing to the text, so their bytes are empty, but
    for those that are ``shown``."""

    def __init__(self, tokenizer: Tokenizer, hide_special: bool, shown: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_token_ids.difference(shown) if hide_special else frozenset()
        self._names: dict[int, str] = {}
        self._byte_lists: dict[int, list[int]] = {}

    def name(self, token_id: int) -> str:
        """The token by itself; one that is part of a character as OpenAI writes it, ``bytes:\\xe2\\x80``."""
        found = self._names.get(token_id)
        if found is None:
            found = self._names[token_id] = _spelled(self._tokenizer.token_bytes(token_id))
        return found

    def text_bytes(self, token_id: int) -> bytes:
        """What the token adds to the text."""
        return b"" if token_id in self._hidden else self._tokenizer.token_bytes(token_id)

    def byte_list(self, token_id: int) -> list[int]:
        """The same as numbers; the list is shared, and not to be changed."""
        found = self._byte_lists.get(token_id)
        if found is None:
            found = self._byte_lists[token_id] = list(self.text_bytes(token_id))
        return found


def _spelled(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


class CompletionLogprobs:
    """Builds ``choices[].logprobs`` of completions for one choice, whole or delta by delta.

    ``k`` is the number asked for; the token itself is always listed, so an entry has up to k + 1.
    """

    def __init__(self, writer: TokenWriter, k: int) -> None:
        self._writer = writer
        self._k = k
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def add(self, entries: Sequence[TokenLogprobs | None], token_ids: Sequence[int]) -> dict[str, Any]:
        """Lists of equal length, one entry a token: offset in characters, token, its logprob, the best, its bytes.

        An entry is None where nothing comes before (the first token of a prompt).
        """
        tokens, offsets, pieces = [], [], []
        for token_id in token_ids:
            tokens.append(self._writer.name(token_id))
            offsets.append(self._offset)
            pieces.append(self._writer.byte_list(token_id))
            self._offset += len(self._decoder.decode(self._writer.text_bytes(token_id)))
        return {
            "text_offset": offsets,
            "token_logprobs": [None if entry is None else finite(entry.logprob) for entry in entries],
            "tokens": tokens,
            "top_logprobs": [None if entry is None else self._top(entry) for entry in entries],
            "bytes": pieces,
        }

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        """Highest first. Where two tokens read the same, the likelier one is shown."""
        best: dict[str, float] = {}
        for token_id, logprob in entry.top[: self._k]:
            best.setdefault(self._writer.name(token_id), finite(logprob))
        best.setdefault(self._writer.name(entry.token_id), finite(entry.logprob))
        return dict(sorted(best.items(), key=lambda item: -item[1]))


def chat_logprobs(writer: TokenWriter, entries: Sequence[TokenLogprobs], k: int) -> dict[str, Any]:
    """``choices[].logprobs`` of chat completions: each token and its best ``k``."""
    return {"content": [_chat_entry(writer, entry, k) for entry in entries], "refusal": None}


def _chat_entry(writer: TokenWriter, entry: TokenLogprobs, k: int) -> dict[str, Any]:
    shown = _chat_token(writer, entry.token_id, entry.logprob)
    shown["top_logprobs"] = [_chat_token(writer, token_id, logprob) for token_id, logprob in entry.top[:k]]
    return shown


def _chat_token(writer: TokenWriter, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": writer.name(token_id),
        "logprob": finite(logprob),
        "bytes": writer.byte_list(token_id),
    }


def prompt_logprobs(
    writer: TokenWriter, entries: Sequence[TokenLogprobs | None] | None
) -> list[dict[str, Any] | None] | None:
    """vLLM's shape: one object a prompt token, the first null, from token id to logprob, rank and text."""
    if entries is None:
        return None
    return [None if entry is None else _ranked(writer, entry) for entry in entries]


def _ranked(writer: TokenWriter, entry: TokenLogprobs) -> dict[str, Any]:
    ranked = {entry.token_id: (entry.logprob, entry.rank)}
    for rank, (token_id, logprob) in enumerate(entry.top, start=1):
        ranked.setdefault(token_id, (logprob, rank))
    return {
        str(token_id): {"logprob": finite(logprob), "rank": rank, "decoded_token": writer.name(token_id)}
        for token_id, (logprob, rank) in ranked.items()
    }
