"""What the rows of a batch want of their next tokens, as a back end reads it, kept from step to step."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.sampling import REQUEST, Records
from octavo.runner.randomness import uniform
from octavo.runner.row_sampling import RowSampling, SeenTokens


class SampleRequests:
    """The records of the rows asked for last: made anew where these are others, else only what a step changes is
    written: the randomness of each position, and changes of logits that depend on the tokens so far."""

    def __init__(self) -> None:
        self._rows: list[RowSampling] = []
        self._records: Records = np.zeros(0, dtype=REQUEST)
        self._drawing: list[int] = []
        self._masking: list[int] = []
        self._masks: list[NDArray[np.int64]] = []
        self._bound: list[int] = []
        self._seeing: list[int] = []
        self._seen: list[SeenTokens] = []
        self.listing: list[int] = []
        """Places of the rows that want logprobs."""
        self.num_top = 0
        """The most that one of them wants."""

    def records(self, rows: list[RowSampling], positions: Sequence[int]) -> Records:
        """REQUEST [R]; valid until the next call, while the rows' tokens stay as they are."""
        if rows != self._rows:
            self._take(rows)
        if self._drawing:
            self._records["uniform"][self._drawing] = [
                uniform(rows[place].seed, rows[place].choice_index, positions[place]) for place in self._drawing
            ]
        if self._bound:
            self._records["bits"][self._bound] = [_address_of_bits(rows[place]) for place in self._bound]
        if self._masking:
            self._masks = [rows[place].masked_ids for place in self._masking]
            self._records["masked"][self._masking] = [mask.ctypes.data for mask in self._masks]
            self._records["num_masked"][self._masking] = list(map(len, self._masks))
        if self._seeing:
            addresses = np.array([seen.addresses for seen in self._seen], dtype=np.uintp)
            self._records["seen_ids"][self._seeing] = addresses[:, 0]
            self._records["seen_counts"][self._seeing] = addresses[:, 1]
            self._records["num_seen"][self._seeing] = list(map(len, self._seen))
        return self._records

    def _take(self, rows: list[RowSampling]) -> None:
        self._rows = list(rows)
        self._records = np.frombuffer(bytearray().join(row.request for row in rows), dtype=REQUEST)
        self._drawing = [place for place, row in enumerate(rows) if not row.params.greedy]
        self._masking = [place for place, row in enumerate(rows) if row.masks_tokens]
        self._bound = [place for place, row in enumerate(rows) if row.grammar is not None]
        seen = {place: row.seen for place, row in enumerate(rows) if row.seen is not None}
        self._seeing, self._seen = list(seen), list(seen.values())
        tops = {place: row.params.logprobs for place, row in enumerate(rows) if row.params.logprobs is not None}
        self.listing, self.num_top = list(tops), max(tops.values(), default=0)


def _address_of_bits(row: RowSampling) -> int:
    """Of what the row's grammar allows, which it keeps; 0: everything."""
    bits = None if row.grammar is None else row.grammar.bits
    return 0 if bits is None else bits.ctypes.data
