"""Contiguous allocators: pieces never overlap, nothing is lost, what is free is joined."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.sim.baselines.allocators import Allocator, Buddy, FirstFit, Piece

NUM_SLOTS = 100
SIZES = st.integers(1, 40)

# A step takes a piece of this size, or gives back the piece at this place among those held.
STEPS = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 1000)), max_size=80)


@pytest.mark.parametrize("make", [FirstFit, Buddy])
@given(steps=STEPS)
def test_pieces_never_overlap_and_all_come_back(make: Callable[[int], Allocator], steps: list[tuple]) -> None:
    allocator = make(NUM_SLOTS)
    untouched = allocator.free_pieces
    held: list[Piece] = []
    for takes, size, place in steps:
        if takes:
            fits = allocator.can_allocate(size)
            before = allocator.free_pieces
            piece = allocator.allocate(size)
            assert (piece is not None) == fits
            if piece is None:
                assert allocator.free_pieces == before
            else:
                assert piece.size >= size
                held.append(piece)
        elif held:
            allocator.free(held.pop(place % len(held)))
        everything = sorted([*held, *allocator.free_pieces])
        assert all(left.end == right.start for left, right in pairwise(everything)), "no overlap, no hole"
        assert (everything[0].start, everything[-1].end) == (0, NUM_SLOTS)
    for piece in held:
        allocator.free(piece)
    assert allocator.free_pieces == untouched, "all joined again"


@given(steps=STEPS)
def test_first_fit_takes_the_lowest_place_there_is(steps: list[tuple]) -> None:
    """Against a map of the slots that is searched from the start each time."""
    allocator = FirstFit(NUM_SLOTS)
    used = bytearray(NUM_SLOTS)
    held: list[Piece] = []
    for takes, size, place in steps:
        if takes:
            start = used.find(bytes(size))
            assert allocator.allocate(size) == (None if start < 0 else Piece(start, size))
            if start >= 0:
                used[start : start + size] = b"x" * size
                held.append(Piece(start, size))
        elif held:
            piece = held.pop(place % len(held))
            used[piece.start : piece.end] = bytes(piece.size)
            allocator.free(piece)


@given(steps=STEPS)
def test_buddy_pieces_are_aligned_powers_of_two(steps: list[tuple]) -> None:
    allocator = Buddy(NUM_SLOTS)
    held: list[Piece] = []
    for takes, size, place in steps:
        if takes and (piece := allocator.allocate(size)) is not None:
            assert piece.size // 2 < size, "the smallest power of two"
            held.append(piece)
        elif held and not takes:
            allocator.free(held.pop(place % len(held)))
        for piece in [*held, *allocator.free_pieces]:
            assert piece.size.bit_count() == 1
            assert piece.start % piece.size == 0


def test_first_fit_joins_both_neighbours() -> None:
    allocator = FirstFit(12)
    first, second, third = (allocator.allocate(4) for _ in range(3))
    assert first is not None
    assert second is not None
    assert third is not None
    allocator.free(first)
    allocator.free(third)
    assert allocator.free_pieces == [Piece(0, 4), Piece(8, 4)]
    assert not allocator.can_allocate(5), "eight slots are free, but not in one piece"
    allocator.free(second)
    assert allocator.free_pieces == [Piece(0, 12)]


def test_buddy_by_hand() -> None:
    """Eleven slots are laid out as 8, 2 and 1."""
    allocator = Buddy(11)
    assert allocator.free_pieces == [Piece(0, 8), Piece(8, 2), Piece(10, 1)]
    three = allocator.allocate(3)
    assert three == Piece(0, 4)
    assert allocator.free_pieces == [Piece(4, 4), Piece(8, 2), Piece(10, 1)]
    one = allocator.allocate(1)
    assert one == Piece(10, 1)
    two = allocator.allocate(2)
    assert two == Piece(8, 2)
    another = allocator.allocate(2)
    assert another == Piece(4, 2)
    assert not allocator.can_allocate(3)
    for piece in (three, another, two, one):
        allocator.free(piece)
    assert allocator.free_pieces == [Piece(0, 8), Piece(8, 2), Piece(10, 1)]
