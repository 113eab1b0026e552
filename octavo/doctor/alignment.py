"""Where two prompts are the same, in order."""

from bisect import bisect_left
from typing import NamedTuple

from octavo.doctor.spelling import UNIT_BYTES, Spelled


class Run(NamedTuple):
    """``length`` units that are the same from ``at`` on in the one and from ``start`` on in the other."""

    at: int
    start: int
    length: int

    @property
    def end(self) -> int:
        """In the other."""
        return self.start + self.length


def common_prefix(one: bytes, other: bytes) -> int:
    """Units with which both begin."""
    return _common(one, 0, other, 0)


def _common(one: bytes, at: int, other: bytes, start: int) -> int:
    """Units that are the same from these on."""
    most = min(len(one) // UNIT_BYTES - at, len(other) // UNIT_BYTES - start)
    low, step = 0, 64
    while low < most:
        step = min(step, most - low)
        if _piece(one, at + low, step) == _piece(other, start + low, step):
            low, step = low + step, 2 * step
        elif step == 1:
            return low
        else:
            step //= 2
    return max(0, most)


def _piece(data: bytes, start: int, length: int) -> bytes:
    return data[UNIT_BYTES * start : UNIT_BYTES * (start + length)]


class Aligner:
    """Finds what others have in common with one prompt."""

    def __init__(self, prompt: Spelled, run: int) -> None:
        """``run``: the shortest that counts, but for the beginning."""
        self._data, self._run = prompt.data, run
        self._places: dict[bytes, list[int]] = {}
        for at in range(len(prompt) - run + 1):
            self._places.setdefault(_piece(self._data, at, run), []).append(at)

    def runs(self, other: Spelled) -> list[Run]:
        """What both begin with (perhaps nothing), then one run after the other, in the order of both."""
        prefix = common_prefix(self._data, other.data)
        found = [Run(0, 0, prefix)]
        at = start = prefix
        while (run := self._next(other.data, at, start)) is not None:
            found.append(run)
            at, start = run.at + run.length, run.end
        return found

    def _next(self, other: bytes, at: int, start: int) -> Run | None:
        """The first run in the other from ``start`` on that is in the one after ``at``."""
        for place in range(start, len(other) // UNIT_BYTES - self._run + 1):
            places = self._places.get(_piece(other, place, self._run), ())
            later = bisect_left(places, at)
            if later < len(places):
                found = places[later]
                return Run(found, place, _common(self._data, found, other, place))
        return None
