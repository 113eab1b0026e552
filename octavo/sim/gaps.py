"""The longest of the last so many steps, for those that drew a token in each of them."""

from bisect import bisect_left
from operator import itemgetter

_step = itemgetter(0)


class LongestSteps:
    """Steps that are longer than all after them, oldest first: whichever step one begins with, the longest since then
    is the first of these that is not before it."""

    def __init__(self) -> None:
        self._longest: list[tuple[int, float]] = []

    def add(self, step: int, seconds: float) -> None:
        """The next step."""
        while self._longest and self._longest[-1][1] <= seconds:
            self._longest.pop()
        self._longest.append((step, seconds))

    def since(self, step: int) -> float:
        """0 where there was no step since."""
        at = bisect_left(self._longest, step, key=_step)
        return self._longest[at][1] if at < len(self._longest) else 0.0
