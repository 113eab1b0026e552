"""Beam search: which beams go on, which end, and when no better one can come. Scores only; memory is elsewhere.

The rules are those of ``transformers`` (``GenerationMixin._beam_search``, version 5), so that its results come out
token for token: candidates that end a sequence leave the beam, only those among the best ``beam_width`` may enter the
finished ones, and a finished sequence scores its summed logprobs over its length to the power of ``length_penalty``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Any, NamedTuple

from octavo.core.errors import InvalidRequestError

MAX_BEAM_WIDTH = 64
Candidate = tuple[int, float]
"""A token that may follow, and its logprob."""


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """How wide to search and what to prefer.

    ``length_penalty``: above 0 favours longer sequences, below 0 shorter ones. ``early_stopping``: False ends when no
    beam at its present length can beat the worst finished one; True as soon as ``beam_width`` sequences are finished;
    "never" only when none could at any length.

    Raises:
        InvalidRequestError: a value is outside its range; ``param`` names the field.
    """

    beam_width: int
    max_tokens: int | None = 16
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    def __post_init__(self) -> None:
        for name, low, high in (("beam_width", 1, MAX_BEAM_WIDTH), ("max_tokens", 1, None)):
            value: Any = getattr(self, name)
            if name == "max_tokens" and value is None:
                continue
            if type(value) is not int or value < low or (high is not None and value > high):
                bound = f"from {low} to {high}" if high else f"of at least {low}"
                raise InvalidRequestError(f"{name} must be a whole number {bound}, got {value!r:.80}", name)
        if isinstance(self.temperature, bool) or self.temperature != 0:
            raise InvalidRequestError(
                f"beam search draws nothing: temperature must be 0, got {self.temperature!r:.80}", "temperature"
            )
        penalty: Any = self.length_penalty
        if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not -10 <= penalty <= 10:
            raise InvalidRequestError(
                f"length_penalty must be a number in [-10, 10], got {penalty!r:.80}", "length_penalty"
            )
        if self.early_stopping not in (True, False, "never") or type(self.early_stopping) not in (bool, str):
            raise InvalidRequestError(
                f'early_stopping must be true, false or "never", got {self.early_stopping!r:.80}', "early_stopping"
            )


class Continuation(NamedTuple):
    """Beam ``beam`` (its place in the last answer of ``advance``) goes on with ``token_id``."""

    beam: int
    token_id: int


class Hypothesis(NamedTuple):
    """A finished sequence: its output, the sum of its tokens' logprobs, its score, and whether EOS ended it."""

    score: float
    cumulative_logprob: float
    token_ids: tuple[int, ...]
    is_stopped: bool


class _Beam(NamedTuple):
    cumulative_logprob: float
    token_ids: tuple[int, ...]


class BeamSearch:
    """One search. It starts with a single beam, the prompt's.

    ``max_tokens``: length of the output at which a sequence ends.
    """

    def __init__(self, params: BeamSearchParams, eos_token_ids: frozenset[int], max_tokens: int) -> None:
        self._params = params
        self._eos_token_ids = frozenset[int]() if params.ignore_eos else eos_token_ids
        self._max_tokens = max_tokens
        self._beams = [_Beam(0.0, ())]
        self._finished: list[Hypothesis] = []

    @property
    def num_candidates(self) -> int:
        """Best tokens to hand in for each beam: enough for ``beam_width`` to go on if every EOS is among them."""
        return max(2, 1 + len(self._eos_token_ids)) * self._params.beam_width

    @property
    def finished(self) -> list[Hypothesis]:
        """The best ``beam_width`` so far, best first."""
        return self._finished

    def advance(self, candidates: Sequence[Sequence[Candidate]]) -> list[Continuation]:
        """One step: the best tokens after each beam, in the order of the last answer. Returns the beams that go on,
        best first, or nothing when the search is over."""
        ranked = self._rank(candidates)
        going, ended = [], []
        for rank, (beam, token_id, total) in enumerate(ranked):
            if not self._ends(beam, token_id):
                going.append((beam, token_id, total))
            elif rank < self._width:
                ended.append((beam, token_id, total))
        self._finish(ended)
        del going[self._width :]
        self._beams = [_Beam(total, (*self._beams[beam].token_ids, token_id)) for beam, token_id, total in going]
        if not self._beams or self._is_full_early() or not self._may_improve():
            return []
        return [Continuation(beam, token_id) for beam, token_id, _ in going]

    @property
    def _width(self) -> int:
        return self._params.beam_width

    def _rank(self, candidates: Sequence[Sequence[Candidate]]) -> list[tuple[int, int, float]]:
        """(beam, token, summed logprob) of the best continuations over all beams, best first."""
        every = (
            (index, token_id, beam.cumulative_logprob + logprob)
            for index, (beam, tokens) in enumerate(zip(self._beams, candidates, strict=True))
            for token_id, logprob in tokens
        )
        return nlargest(self.num_candidates, every, key=lambda candidate: candidate[2])

    def _ends(self, beam: int, token_id: int) -> bool:
        return token_id in self._eos_token_ids or len(self._beams[beam].token_ids) + 1 >= self._max_tokens

    def _finish(self, ended: Sequence[tuple[int, int, float]]) -> None:
        """Sequences that ended enter the finished ones; the best stay."""
        for beam, token_id, total in ended:
            token_ids = (*self._beams[beam].token_ids, token_id)
            score = total / float(len(token_ids)) ** self._params.length_penalty
            self._finished.append(Hypothesis(score, total, token_ids, token_id in self._eos_token_ids))
        self._finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self._finished[self._width :]

    def _is_full_early(self) -> bool:
        return self._params.early_stopping is True and len(self._finished) == self._width

    def _may_improve(self) -> bool:
        """Could the best beam still beat the worst finished sequence?"""
        if len(self._finished) < self._width:
            return True
        penalty = self._params.length_penalty
        at_any_length = self._params.early_stopping == "never" and penalty > 0
        length = self._max_tokens if at_any_length else len(self._beams[0].token_ids)
        best_possible = self._beams[0].cumulative_logprob / float(length) ** penalty
        return bool(best_possible > self._finished[-1].score)
