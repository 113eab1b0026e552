"""What a step is given besides the weights and the KV memory, and what its logits are for."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from octavo.kernels.interface import BatchLayout
from octavo.runner.drafted_draws import DraftedDraw
from octavo.runner.row_sampling import RowSampling


class KnownToken(NamedTuple):
    """A prompt token whose logprob is wanted, with those of the ``num_top`` best beside it."""

    row_id: int
    token_id: int
    num_top: int


class DrawingRows:
    """Rows that draw a token each, in the order of their logits."""

    def __init__(self, states: list[RowSampling]) -> None:
        self.states = states
        self._token_lists = [state.token_ids for state in states]
        self.grammars = [(state.row_id, state.grammar) for state in states if state.grammar is not None]
        """Of the rows that have one, with the row's id."""
        self._noting = [place for place, state in enumerate(states) if state.notes_tokens]

    def __len__(self) -> int:
        return len(self.states)

    @property
    def positions(self) -> list[int]:
        """Of the tokens to be drawn, in their sequences."""
        return list(map(len, self._token_lists))

    def append(self, token_ids: Sequence[int]) -> None:
        """These were drawn."""
        deque(map(list.append, self._token_lists, token_ids), maxlen=0)
        for place in self._noting:
            self.states[place].note(token_ids[place])

    def part(self, start: int, end: int) -> "DrawingRows":
        return self if start == 0 and end >= len(self.states) else DrawingRows(self.states[start:end])


class PooledRow(NamedTuple):
    """A row that pools: the hidden states of ``num_places`` of its positions are wanted."""

    row_id: int
    num_places: int


class StepInputs(NamedTuple):
    """``token_ids``: int64 [R], what to compute, row after row; ``layouts``: where the rows stand, one a layer group;
    ``head_rows``: int64 [N], which of them reach the head: first those of ``drawing``, then those that predict
    ``known``, then those of ``drafted``, in order of their numbers; last, and to no head but the final
    norm, those of ``pooled``."""

    token_ids: Tensor
    layouts: list[BatchLayout]
    head_rows: Tensor
    drawing: DrawingRows
    known: list[KnownToken]
    drafted: list[DraftedDraw]
    pooled: Sequence[PooledRow] = ()
