"""Stretches of requests that follow each other, drawn evenly of as many as come."""

from collections.abc import Iterator
from random import Random
from typing import Generic, TypeVar

T = TypeVar("T")

STRETCH = 64
"""Requests in a row: those that come one soon after the other share what changes slowly, a date or an hour."""

NUM_STRETCHES = 128


class Stretches(Generic[T]):
    """Holds at most ``num_stretches`` of them, each as likely as any other ("Random Sampling with a Reservoir", Vitter,
    ACM TOMS 1985, algorithm R); all that came, as long as they are no more."""

    def __init__(self, num_stretches: int = NUM_STRETCHES, seed: int = 0) -> None:
        self._num_stretches = num_stretches
        self._rng = Random(seed)
        self._kept: list[list[T]] = []
        self._open: list[T] = []
        self._num_begun = 0
        self.count = 0

    def add(self, item: T) -> None:
        if self.count % STRETCH == 0:
            self._begin()
        self.count += 1
        self._open.append(item)

    def _begin(self) -> None:
        self._open = []
        self._num_begun += 1
        if len(self._kept) < self._num_stretches:
            self._kept.append(self._open)
        elif (place := self._rng.randrange(self._num_begun)) < self._num_stretches:
            self._kept[place] = self._open

    def __iter__(self) -> Iterator[T]:
        for stretch in self._kept:
            yield from stretch

    def __len__(self) -> int:
        return sum(map(len, self._kept))
