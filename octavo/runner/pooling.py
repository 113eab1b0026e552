"""Sums of hidden states that do not depend on the order, nor on the chunks, in which they were computed."""

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from octavo.core.step import UNITS_PER_ONE
from octavo.runner.step_inputs import PooledRow

LARGEST = 2.0**18
"""Sums of 2**20 positions then fit 63 bits."""


def pooled_sums(rows: Sequence[PooledRow], hidden: Tensor) -> Mapping[int, list[int]]:
    """Row id to its sum, in units. ``hidden``: fp32 [sum of the rows' places, hidden_size], after the final norm.

    Raises:
        ValueError: NaN, or too large to be a hidden state.
    """
    values = hidden.numpy()
    if not (np.abs(values) < LARGEST).all():  # NaN compares false
        raise ValueError("the model gave no usable hidden states for an embedding: NaN or infinite")
    units = np.rint(values.astype(np.float64) * UNITS_PER_ONE).astype(np.int64)
    starts = np.cumsum([0, *(row.num_places for row in rows[:-1])])
    sums = np.add.reduceat(units, starts, axis=0).tolist()
    return {row.row_id: total for row, total in zip(rows, sums, strict=True)}
