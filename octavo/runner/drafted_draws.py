"""Draws after positions that hold drafts: a row goes on drawing while what it draws is what was drafted."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from octavo.core.step import TokenLogprobs
from octavo.runner.row_sampling import RowSampling
from octavo.runner.sampler import Sampler


class DraftedDraw(NamedTuple):
    """The draw after a position that holds a draft: ``token_id``, the ``number``-th of its row (from 1), whose sequence
    has ``num_tokens`` tokens if all its drafts up to this one are right."""

    state: RowSampling
    number: int
    token_id: int
    num_tokens: int

    @property
    def is_due(self) -> bool:
        """Is the draft right? The tokens before it have been drawn, and so has this one, and more may come."""
        token_ids, grammar = self.state.token_ids, self.state.grammar
        if grammar is not None and grammar.is_complete:
            return False
        return len(token_ids) == self.num_tokens and token_ids[-1] == self.token_id


def drafted_draws(state: RowSampling, start: int, token_ids: Sequence[int]) -> list[DraftedDraw]:
    """Those of a row that computes position ``start`` and then these drafts."""
    return [DraftedDraw(state, number, token_id, start + 1 + number) for number, token_id in enumerate(token_ids, 1)]


class FurtherTokens:
    """What the rows of a step draw after their first tokens: ``token_ids`` and, where asked for, ``logprobs``, by row
    id. Every draw changes its row, since the next one depends on it."""

    def __init__(self) -> None:
        self.token_ids: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[TokenLogprobs]] = {}

    def draw(self, sampler: Sampler, draws: Sequence[DraftedDraw], logits: Tensor, best_ids: Tensor) -> None:
        """``draws``: one for each row of ``logits``, in order of their numbers; those that are not due are left out."""
        for _, group in groupby(enumerate(draws), key=lambda each: each[1].number):
            due = [(place, draw.state) for place, draw in group if draw.is_due]
            if due:
                rows = _rows([place for place, _ in due])
                self._draw_due(sampler, [state for _, state in due], logits[rows], best_ids[rows])

    def _draw_due(self, sampler: Sampler, states: list[RowSampling], logits: Tensor, best_ids: Tensor) -> None:
        """A row without a token to draw is left as it is: it fails when nothing but this position is computed."""
        samples = sampler.sample(logits, best_ids, states, [len(state.token_ids) for state in states])
        for state, token_id in zip(states, samples.token_ids, strict=True):
            if state.row_id in samples.faults:
                continue
            state.append(token_id)
            self.token_ids.setdefault(state.row_id, []).append(token_id)
            if state.row_id in samples.logprobs:
                self.logprobs.setdefault(state.row_id, []).append(samples.logprobs[state.row_id])


def _rows(places: list[int]) -> slice | Tensor:
    """Ascending places as an index; a slice, where it can be one, copies nothing."""
    if places[-1] - places[0] + 1 == len(places):
        return slice(places[0], places[-1] + 1)
    return torch.tensor(places)
