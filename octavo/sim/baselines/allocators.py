"""Allocators of contiguous memory, in slots (one slot holds the keys and values of one token).

They are what serving engines had before paged memory: each sequence gets one piece, and pieces that come free leave
holes that the next sequence may not fit into (external fragmentation). Both are textbook ones: D. E. Knuth, "The Art
of Computer Programming", volume 1, section 2.5: algorithms A and B (first fit, merging), R and S (buddy system).
"""

from bisect import bisect_left
from typing import NamedTuple, Protocol


class Piece(NamedTuple):
    """Slots ``start`` .. ``start + size - 1``; ``size`` may be more than was asked for."""

    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class Allocator(Protocol):
    """Gives out pieces of a memory of fixed size; a piece never moves."""

    @property
    def free_pieces(self) -> list[Piece]:
        """What is free, by address."""
        ...

    def can_allocate(self, size: int) -> bool:
        """Is there one free piece that holds ``size`` slots? Changes nothing."""
        ...

    def allocate(self, size: int) -> Piece | None:
        """A piece of at least ``size`` slots; None, with nothing changed, if no free one is large enough."""
        ...

    def free(self, piece: Piece) -> None:
        """Take back a piece that ``allocate`` gave, once; it is joined with free neighbours."""
        ...


class FirstFit:
    """The free piece with the lowest address that is large enough, cut to measure; neighbours are merged at once."""

    def __init__(self, num_slots: int) -> None:
        self._free = [Piece(0, num_slots)]

    @property
    def free_pieces(self) -> list[Piece]:
        return list(self._free)

    def can_allocate(self, size: int) -> bool:
        return any(piece.size >= size for piece in self._free)

    def allocate(self, size: int) -> Piece | None:
        for index, (start, free_size) in enumerate(self._free):
            if free_size >= size:
                rest = [Piece(start + size, free_size - size)] if free_size > size else []
                self._free[index : index + 1] = rest
                return Piece(start, size)
        return None

    def free(self, piece: Piece) -> None:
        start, end = piece.start, piece.end
        index = after = bisect_left(self._free, piece)
        if index > 0 and self._free[index - 1].end == start:
            index -= 1
            start = self._free[index].start
        if after < len(self._free) and self._free[after].start == end:
            end = self._free[after].end
            after += 1
        self._free[index:after] = [Piece(start, end - start)]


class Buddy:
    """Pieces of power-of-two sizes at multiples of their size; a free piece is joined with its other half.

    A memory that is no power of two is laid out as several, the largest first: a buddy beyond the end is never free.
    """

    def __init__(self, num_slots: int) -> None:
        self._free: list[set[int]] = [set() for _ in range(num_slots.bit_length())]  # addresses, by log2 of the size
        start = 0
        for order in reversed(range(num_slots.bit_length())):
            if num_slots >> order & 1:
                self._free[order].add(start)
                start += 1 << order

    @property
    def free_pieces(self) -> list[Piece]:
        return sorted(Piece(start, 1 << order) for order, starts in enumerate(self._free) for start in starts)

    def can_allocate(self, size: int) -> bool:
        return any(self._free[_order_of(size) :])

    def allocate(self, size: int) -> Piece | None:
        wanted = _order_of(size)
        order = next((order for order in range(wanted, len(self._free)) if self._free[order]), None)
        if order is None:
            return None
        start = min(self._free[order])
        self._free[order].remove(start)
        while order > wanted:
            order -= 1
            self._free[order].add(start + (1 << order))
        return Piece(start, 1 << order)

    def free(self, piece: Piece) -> None:
        start, order = piece.start, _order_of(piece.size)
        while (buddy := start ^ 1 << order) in self._free[order]:
            self._free[order].remove(buddy)
            start = min(start, buddy)
            order += 1
        self._free[order].add(start)


def _order_of(size: int) -> int:
    """log2 of the smallest power of two that is no less than ``size`` (at least 1)."""
    return (size - 1).bit_length()
