"""What one row more costs in a step, as measured, and whether it is worth that."""

from dataclasses import dataclass

TYPICAL_BASE_ROWS = 2.4
"""Of a model of 135 million parameters on two cores of a CPU: what a step costs beside its rows, in rows."""

MOST_BASE_ROWS = 16.0
"""Taken where rows seem to cost less still, or nothing: it is a measurement on a machine that does other things too."""

MOST_ROWS = 32
"""Steps of more rows say nothing of those in which drafts may pay."""

MEMORY = 32
"""About how many of the last steps count."""

MOST_TIMES = 2.0
"""A step counts for at most so many times what it should have taken: other work of the machine is no cost of rows."""

ENOUGH_VARIANCE = 1.0
"""Of the numbers of rows in these; if they all were alike, nobody knows what one row more would have cost."""

LEAST_VARIANCE = 0.05
"""This is enough where the times follow the numbers of rows: ``LEAST_CORRELATION``, squared."""

LEAST_CORRELATION = 0.5


@dataclass(slots=True)
class Gain:
    """A step to which rows may be added. Each row counts for the chance that what it computes is needed; ``cost`` is
    that of the whole step, in rows."""

    num_tokens: float
    cost: float

    def pays(self, chance: float) -> bool:
        """Would one row more bring more for its cost than the step does for its own?"""
        return chance * self.cost > self.num_tokens

    def add(self, chance: float) -> bool:
        """One row more, where that pays: true if it does."""
        if not self.pays(chance):
            return False
        self.num_tokens += chance
        self.cost += 1
        return True


class StepCosts:
    """A step costs a part that is the same for all (at one stream: to read the weights) and a part for each row. Both
    are fitted to the last steps, by least squares that forget: means, the variance of the number of rows, and its
    covariance with the time."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._rows = 0.0
        self._seconds = 0.0
        self._variance = 0.0
        self._variance_of_seconds = 0.0
        self._covariance = 0.0

    def note(self, num_rows: int, seconds: float) -> None:
        """A step of so many rows, each of which reached the head, took so long."""
        if num_rows > MOST_ROWS:
            return
        if self._num_steps:
            base_rows = self.base_rows
            expected = self._seconds * (base_rows + num_rows) / (base_rows + self._rows)
            seconds = min(seconds, MOST_TIMES * expected)
        self._num_steps = min(self._num_steps + 1, MEMORY)
        share = 1 / self._num_steps
        more_rows, more_seconds = num_rows - self._rows, seconds - self._seconds
        self._rows += share * more_rows
        self._seconds += share * more_seconds
        self._variance = (1 - share) * (self._variance + share * more_rows**2)
        self._variance_of_seconds = (1 - share) * (self._variance_of_seconds + share * more_seconds**2)
        self._covariance = (1 - share) * (self._covariance + share * more_rows * more_seconds)

    @property
    def base_rows(self) -> float:
        """What a step costs beside its rows, in rows."""
        if not self._is_measured:
            return TYPICAL_BASE_ROWS
        if self._covariance <= 0:
            return MOST_BASE_ROWS
        seconds_per_row = self._covariance / self._variance
        return min(MOST_BASE_ROWS, max(0.0, self._seconds / seconds_per_row - self._rows))

    @property
    def _is_measured(self) -> bool:
        """Do the last steps say what a row costs?"""
        if self._variance >= ENOUGH_VARIANCE:
            return True
        explained = LEAST_CORRELATION * self._variance * self._variance_of_seconds
        return self._variance >= LEAST_VARIANCE and self._covariance > 0 and self._covariance**2 >= explained

    def gain(self, num_rows: int) -> Gain:
        """A step that so far has ``num_rows`` rows, all of them needed."""
        return Gain(num_rows, self.base_rows + num_rows)
