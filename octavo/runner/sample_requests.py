"""What the rows of a batch want of their next tokens, as a back end reads it, kept from step to step."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.sampling import REQUEST, Records
from octavo.runner.randomness import uniform
from octavo.runner.row_sampling import RowSampling


class SampleRequests:
    """The records of the rows asked for last: made anew where these are others, else only what a step changes is
    written: the randomness of each position, and changes of logits that depend on the tokens so far."""

    def __init__(self) -> None:
        self._rows: list[RowSampling] = []
        self._records: Records = np.zeros(0, dtype=REQUEST)
        self._drawing: list[int] = []
        self._changing: list[int] = []
        self._masks: list[NDArray[np.int64]] = []
        self.listing: list[int] = []
        """Places of the rows that want logprobs."""
        self.num_top = 0
        """The most that one of them wants."""

    def records(self, rows: list[RowSampling], positions: Sequence[int]) -> Records:
        """REQUEST [R]; valid until the next call, while the rows' tokens stay as they are."""
        if rows != self._rows:
            self._take(rows)
        self._records["uniform"][self._drawing] = [
            uniform(rows[place].seed, rows[place].choice_index, positions[place]) for place in self._drawing
        ]
        self._masks = [rows[place].write_changes(self._records[place]) for place in self._changing]
        return self._records

    def _take(self, rows: list[RowSampling]) -> None:
        self._rows = list(rows)
        self._records = np.frombuffer(bytearray().join(row.request for row in rows), dtype=REQUEST)
        self._drawing = [place for place, row in enumerate(rows) if not row.params.greedy]
        self._changing = [place for place, row in enumerate(rows) if row.changes_with_tokens]
        tops = {place: row.params.logprobs for place, row in enumerate(rows) if row.params.logprobs is not None}
        self.listing, self.num_top = list(tops), max(tops.values(), default=0)
