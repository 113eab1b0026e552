"""What a sequence's own text says of its next tokens: n-gram drafts, also known as prompt lookup.

Where a text repeats itself (a document is quoted, code is edited, a list goes on), what followed the latest earlier
occurrence of the last few tokens is what follows again, most often. This is the match model of data compressors: it
points at the place from which the text seems to be copied, moves on with every token that comes true, and looks for
another place when one does not. The longer it has been right, the likelier it is right again; how likely, it learns.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

LONGEST_NGRAM = 3
"""Tokens by which a place is looked for."""

SHORTEST_NGRAM = 2
"""The same, where so many have never stood before."""

_KIND_OF_LENGTH = (0, 0, 0, 1, 2, 2, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 5)
"""Matches of 2, 3, 4 or 5, 6 to 8, 9 to 15, and 16 or more tokens are told apart."""

FIRST_CHANCES = (0.2, 0.5, 0.7, 0.85, 0.93, 0.97)
"""That the next token comes true, by kind of match, before anything has been learnt: a match of two tokens is mostly
chance, one of ten hardly ever."""

EDIT_TOKENS = 8
"""After an edit of about so many tokens, a text is found again near where it was left, by a single token."""

LEAST_COPIED = 4
"""If it was followed for so long before."""

MOST_INDEXED = 8192
"""Of a long prompt so many last tokens are looked at: each costs a microsecond of a step and 250 bytes."""

LEARNING_RATE = 1 / 16
"""Weight of one token that was predicted, in the chance of its kind of match."""


class Drafter(Protocol):
    """Proposes the next tokens of one sequence."""

    def follow(self, token_ids: Sequence[int]) -> None:
        """Take in what is new of the sequence's tokens, all of which are given."""
        ...

    def propose(self, token_ids: Sequence[int]) -> Iterator[tuple[int, float]]:
        """Tokens that may come next, and of each the chance that it comes true together with all before it. For the
        tokens that ``follow`` was given last."""
        ...


class NgramDrafter:
    """Implements ``Drafter``. A token costs a constant number of steps; nothing of it is computed by the model.

    ``_after``: the position after the latest occurrence of each n-gram; ``_source``: where the next token seems to be
    copied from; ``_length``: how many tokens before it agree. ``_left``: the source that was followed until the text
    became another one, and how many tokens it had then.
    """

    __slots__ = ("_after", "_chances", "_left", "_length", "_num_seen", "_source")

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        self._chances = list(FIRST_CHANCES)
        self._num_seen = 0
        self._source: int | None = None
        self._length = 0
        self._left: tuple[int, int] | None = None

    def follow(self, token_ids: Sequence[int]) -> None:
        if not self._num_seen:
            self._index(token_ids[:-1])
        for position in range(self._num_seen, len(token_ids)):
            self._check(token_ids, position)
            self._look_up(token_ids, position + 1)
            self._note(token_ids, position + 1)
        self._num_seen = len(token_ids)

    def propose(self, token_ids: Sequence[int]) -> Iterator[tuple[int, float]]:
        source, chance = self._source, 1.0
        if source is None:
            return
        period = len(token_ids) - source  # what is copied may reach into the copy
        for step in range(self._length, 1 << 62):
            chance *= self._chances[_kind(step)]
            yield token_ids[source + (step - self._length) % period], chance

    def _index(self, token_ids: Sequence[int]) -> None:
        """All n-grams of what is there, at once; of these nothing is learnt."""
        first = max(0, len(token_ids) - MOST_INDEXED)
        for length in range(SHORTEST_NGRAM, LONGEST_NGRAM + 1):
            ngrams = zip(*(token_ids[first + start :] for start in range(length)), strict=False)
            self._after.update(zip(ngrams, range(first + length, len(token_ids) + 1), strict=False))
        self._num_seen = len(token_ids)

    def _check(self, token_ids: Sequence[int], position: int) -> None:
        """A token is there: is it the one that was predicted?"""
        if self._source is None:
            return
        kind, is_right = _kind(self._length), token_ids[self._source] == token_ids[position]
        self._chances[kind] += (is_right - self._chances[kind]) * LEARNING_RATE
        if is_right:
            self._source += 1
            self._length += 1
            return
        if self._length >= LEAST_COPIED:
            self._left = self._source, position
        self._source = None

    def _look_up(self, token_ids: Sequence[int], end: int) -> None:
        """Where there is no source: after the latest occurrence of the tokens before ``end``, or of the last of them
        near the source that was left."""
        if self._source is not None:
            return
        for length in range(LONGEST_NGRAM, SHORTEST_NGRAM - 1, -1):
            source = self._after.get(tuple(token_ids[end - length : end])) if end >= length else None
            if source is None and length == LONGEST_NGRAM:
                source = self._after_edit(token_ids, end)
            if source is not None:
                self._source, self._length, self._left = source, length, None
                return

    def _after_edit(self, token_ids: Sequence[int], end: int) -> int | None:
        """The position after the last token, at or soon after the source that was left a few tokens ago."""
        if self._left is None:
            return None
        source, left_at = self._left
        near = token_ids[source : min(source + EDIT_TOKENS, end - 1)]
        if end - left_at > EDIT_TOKENS or token_ids[end - 1] not in near:
            return None
        return source + near.index(token_ids[end - 1]) + 1

    def _note(self, token_ids: Sequence[int], end: int) -> None:
        for length in range(SHORTEST_NGRAM, LONGEST_NGRAM + 1):
            if end >= length:
                self._after[tuple(token_ids[end - length : end])] = end


def _kind(length: int) -> int:
    return _KIND_OF_LENGTH[min(length, len(_KIND_OF_LENGTH) - 1)]
