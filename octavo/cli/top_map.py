"""The pool as characters: one a block, or one for several where the pool is larger than the screen."""

from collections import Counter
from typing import NamedTuple

from octavo.core.block_map import ONLY_PINNED


class Sign(NamedTuple):
    """A character, which tells the state without colours, and its colour (Okabe and Ito's)."""

    character: str
    colour: str
    name: str


FREE = Sign("·", "#8a8270", "free")
CACHED = Sign("▒", "#56b4e9", "cached")
PINNED = Sign("◆", "#e69f00", "pinned")
ACTIVE = Sign("█", "#009e73", "active")
SHARED = Sign("2", "#5fd3ae", "shared by 2")
WIDELY_SHARED = Sign("3", "#c9fbe9", "by 3 or more")
SIGNS = (FREE, CACHED, PINNED, ACTIVE, SHARED, WIDELY_SHARED)


def sign_of(code: int) -> Sign:
    """Of a block, by its byte (``block_map``)."""
    references = code >> 1
    if references == ONLY_PINNED:
        return PINNED
    if references == 0:
        return CACHED if code & 1 else FREE
    return (ACTIVE, SHARED, WIDELY_SHARED)[min(references, 3) - 1]


def blocks_per_cell(num_blocks: int, width: int, height: int) -> int:
    """The fewest that let the pool fit into so many columns and rows."""
    return max(1, -(-num_blocks // max(1, width * height)))


def rows_of(blocks: bytes, width: int, per_cell: int) -> list[list[Sign]]:
    """The map in rows of ``width`` cells; a cell of several blocks shows what most of them are, and of two that are
    equally many the busier."""
    signs = [sign_of(code) for code in blocks]
    cells = [_most(signs[start : start + per_cell]) for start in range(0, len(signs), per_cell)]
    return [cells[start : start + width] for start in range(0, len(cells), width)]


def _most(signs: list[Sign]) -> Sign:
    if len(signs) == 1:
        return signs[0]
    counts = Counter(signs)
    return max(counts, key=lambda sign: (counts[sign], SIGNS.index(sign)))


def tally(blocks: bytes) -> dict[Sign, int]:
    """How many blocks have which sign."""
    counts = Counter(map(sign_of, blocks))
    return {sign: counts[sign] for sign in SIGNS}
