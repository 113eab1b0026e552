"""Linear costs from measured steps: least squares of relative errors, with no cost below 0."""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from statistics import median
from typing import Any, NamedTuple

from octavo.core.errors import ConfigurationError
from octavo.sim.costs import CostModel, LinearCosts, StepWork

TERMS: Mapping[str, Callable[[StepWork], int]] = {
    "base": lambda _work: 1,
    "per_decode": lambda work: work.num_decodes,
    "per_decode_context": lambda work: work.decode_context,
    "per_chunk": lambda work: work.num_chunks,
    "per_chunk_token": lambda work: work.chunk_tokens,
    "per_chunk_context": lambda work: work.chunk_context,
    "per_chunk_pair": lambda work: work.chunk_pairs,
}
"""Of ``LinearCosts``: what of a step's work each is multiplied with."""

NUM_ROUNDS = 20
LEAST_RESIDUAL = 0.01
"""Of a step: relative residuals below it weigh alike."""


HELD_OUT = 4


class Cell(NamedTuple):
    """``num_steps`` steps of (nearly) the same work; the median of what they took."""

    work: StepWork
    seconds: float
    num_steps: int = 1


class Errors(NamedTuple):
    """Of predicted times, relative to measured ones."""

    median: float
    p90: float


def fit(cells: Sequence[Cell]) -> LinearCosts:
    """The costs whose relative errors have the smallest sum over the cells: least squares, over again with a weight of
    one over the residual, so that a cell that the machine held up counts little. What a cell of n steps says is worth
    the root of n.

    Raises:
        ConfigurationError: the cells do not tell any cost.
    """
    worth = [sqrt(cell.num_steps) for cell in cells]
    weights = worth
    costs = LinearCosts(0.0, 0.0, 0.0)
    for _ in range(NUM_ROUNDS):
        costs = _weighted(cells, weights)
        residuals = [abs(costs.step_seconds(cell.work) / cell.seconds - 1) for cell in cells]
        weights = [n / max(residual, LEAST_RESIDUAL) for n, residual in zip(worth, residuals, strict=True)]
    return costs


class Fitted(NamedTuple):
    """``costs``: fitted to all cells. ``own``: their errors on these; ``held_out``: those, on every
    ``HELD_OUT``th cell, of costs that were fitted to the others; each of so many cells."""

    costs: LinearCosts
    own: Errors
    num_own: int
    held_out: Errors
    num_held_out: int


def fit_and_check(cells: Sequence[Cell]) -> Fitted:
    """
    Raises:
        ConfigurationError: the cells do not tell any cost, or are less than ``HELD_OUT``.
    """
    if len(cells) < HELD_OUT:
        raise ConfigurationError(f"{len(cells)} kinds of steps were measured; that is too few to fit costs to")
    held_out = [cell for place, cell in enumerate(cells) if place % HELD_OUT == 1]
    others = [cell for place, cell in enumerate(cells) if place % HELD_OUT != 1]
    costs, without = fit(cells), fit(others)
    return Fitted(costs, errors(costs, cells), len(cells), errors(without, held_out), len(held_out))


def errors(costs: CostModel, cells: Sequence[Cell]) -> Errors:
    found = sorted(abs(costs.step_seconds(cell.work) / cell.seconds - 1) for cell in cells)
    return Errors(median(found), found[min(len(found) - 1, int(0.9 * len(found)))])


def _weighted(cells: Sequence[Cell], weights: Sequence[float]) -> LinearCosts:
    """Terms that would be below 0 are left out, the one furthest below first, until none is."""
    names = [name for name, count in TERMS.items() if any(count(cell.work) for cell in cells)]
    while names:
        scales = {name: max(TERMS[name](cell.work) for cell in cells) for name in names}
        rows = [[TERMS[name](cell.work) / scales[name] / cell.seconds for name in names] for cell in cells]
        found = dict(zip(names, least_squares(rows, weights), strict=True))
        worst = min(names, key=found.__getitem__)
        if found[worst] >= 0:
            values: dict[str, Any] = dict.fromkeys(TERMS, 0.0) | {name: found[name] / scales[name] for name in names}
            return LinearCosts(**values)
        names.remove(worst)
    raise ConfigurationError("the measured steps tell no cost: none is above 0")


def least_squares(rows: Sequence[Sequence[float]], weights: Sequence[float]) -> list[float]:
    """The x with the smallest weighted sum of squares of ``rows`` x - 1, by the normal equations. What the rows do not
    tell is 0."""
    size = len(rows[0])
    matrix = [
        [sum(w * row[i] * row[j] for row, w in zip(rows, weights, strict=True)) for j in range(size)]
        + [sum(w * row[i] for row, w in zip(rows, weights, strict=True))]
        for i in range(size)
    ]
    return _solved(matrix)


def _solved(matrix: list[list[float]]) -> list[float]:
    """Of a symmetric system with its right side in the last column: Gauss-Jordan with the largest diagonal first."""
    size = len(matrix)
    least = 1e-12 * max(matrix[i][i] for i in range(size))
    left = set(range(size))
    while left:
        pivot = max(left, key=lambda i: matrix[i][i])
        left.remove(pivot)
        if matrix[pivot][pivot] <= least:
            matrix[pivot] = [0.0] * (size + 1)
            continue
        matrix[pivot] = [value / matrix[pivot][pivot] for value in matrix[pivot]]
        for i in range(size):
            if i != pivot and matrix[i][pivot]:
                factor = matrix[i][pivot]
                matrix[i] = [value - factor * of for value, of in zip(matrix[i], matrix[pivot], strict=True)]
    return [row[-1] for row in matrix]
