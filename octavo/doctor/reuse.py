"""How much of what was asked before comes soon enough for a cache of a given size, for all sizes at once.

In a cache that gives up what was used least recently, a block is there if fewer other blocks than it holds were used
since ("Evaluation techniques for storage hierarchies", Mattson et al., IBM Systems Journal 1970). Of many blocks a
sample is followed, those whose key ends in zeros, and what is counted in it stands for all ("Efficient MRC Construction
with SHARDS", Waldspurger et al., FAST 2015): memory is bounded. What the sample lacks of all uses, or has too much of
them, is due to the few blocks that are used all the time, and so counts at the shortest distance (SHARDS-adj, ibid.).
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

MAX_KEYS = 1 << 17
"""Blocks that are followed at a time."""

BUCKETS_PER_OCTAVE = 8


class ReuseDistances:
    """``uses``: weight of all that was looked for."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._shift = 0
        self._recency = _Recency(2 * max_keys)
        self._reused: Counter[int] = Counter()
        self._num_followed = 0
        self.uses = 0

    @property
    def one_in(self) -> int:
        """Of so many blocks one is followed."""
        return 1 << self._shift

    def use(self, keys: Sequence[int], weights: Sequence[int], num_wanted: int) -> None:
        """A request's blocks, root first. The first ``num_wanted`` are looked for, and count by their ``weights``; then
        all have been used, the last one least recently."""
        mask = self.one_in - 1
        self.uses += sum(weights[:num_wanted])
        followed = [index for index, key in enumerate(keys) if not key & mask]
        for index in followed:
            if index < num_wanted:
                self._count(self._recency.num_since(keys[index]), weights[index])
        self._recency.use(keys[index] for index in reversed(followed))
        while len(self._recency) > self._max_keys:
            self._shift += 1
            self._recency.keep_multiples(self.one_in)

    def _count(self, num_since: int | None, weight: int) -> None:
        self._num_followed += weight << self._shift
        if num_since is not None:
            self._reused[_bucket(num_since << self._shift)] += weight << self._shift

    @property
    def reuses(self) -> float:
        """Weight of what had been used before."""
        return self._with_missing(self._reused.total())

    def hits(self, num_blocks: int) -> float:
        """Weight that a cache of so many blocks would have had."""
        return self._with_missing(
            sum(weight * _part_below(bucket, num_blocks) for bucket, weight in self._reused.items())
        )

    def _with_missing(self, weight: float) -> float:
        return min(float(self.uses), max(0.0, weight + self.uses - self._num_followed))

    def blocks_for(self, part: float) -> int:
        """The fewest blocks with which a cache has this part of what an unlimited one has, within 9 %."""
        seen = self._with_missing(0)
        for bucket in sorted(self._reused):
            seen += self._reused[bucket]
            if seen >= part * self.reuses:
                return _edge(bucket + 1)
        return 0


def _bucket(distance: int) -> int:
    return math.floor(BUCKETS_PER_OCTAVE * math.log2(distance + 1))


def _edge(bucket: int) -> int:
    """The first distance that a bucket may have; the next one may begin with the same, as long as they are small."""
    return math.ceil(round(2 ** (bucket / BUCKETS_PER_OCTAVE), 6)) - 1


def _part_below(bucket: int, num_blocks: int) -> float:
    """Of a bucket's distances, the share that is below this."""
    first, end = _edge(bucket), _edge(bucket + 1)
    return min(1.0, max(0.0, (num_blocks - first) / (end - first)))


class _Recency:
    """Keys in the order of their last use, with the number used after each: marks at rising places in a binary indexed
    tree ("A New Data Structure for Cumulative Frequency Tables", Fenwick, Software: Practice and Experience 1994)."""

    def __init__(self, num_places: int) -> None:
        self._num_places = num_places
        self._places: dict[int, int] = {}
        self._tree = [0] * (num_places + 1)
        self._next = 1

    def __len__(self) -> int:
        return len(self._places)

    def num_since(self, key: int) -> int | None:
        """Keys used after this one; None if it never was."""
        place = self._places.get(key)
        if place is None:
            return None
        tree, num_before = self._tree, 0
        while place:
            num_before += tree[place]
            place &= place - 1
        return len(self._places) - num_before

    def use(self, keys: Iterable[int]) -> None:
        for key in keys:
            if (place := self._places.pop(key, None)) is not None:
                self._add(place, -1)
            if self._next > self._num_places:
                self._renumber(list(self._places))
            self._places[key] = self._next
            self._add(self._next, 1)
            self._next += 1

    def keep_multiples(self, divisor: int) -> None:
        """Forget all other keys."""
        self._renumber([key for key in self._places if not key % divisor])

    def _renumber(self, keys: list[int]) -> None:
        """``keys`` in order of use, as a dict has them."""
        if len(keys) > self._num_places // 2:
            self._num_places *= 2  # a single request of more blocks than are followed
        self._places = {key: place for place, key in enumerate(keys, 1)}
        self._tree = [0] * (self._num_places + 1)
        self._next = len(keys) + 1
        for place in range(1, self._num_places + 1):
            self._tree[place] += place < self._next
            if (above := place + (place & -place)) <= self._num_places:
                self._tree[above] += self._tree[place]

    def _add(self, place: int, count: int) -> None:
        tree, num_places = self._tree, self._num_places
        while place <= num_places:
            tree[place] += count
            place += place & -place
