"""What every block of a pool is used for, a byte each, for those who look at it. Questions alone, between two steps."""

from collections.abc import Mapping
from itertools import repeat
from operator import is_not

from octavo.core.pool import BlockPool

MOST_REFERENCES = 126
"""That a byte tells apart."""

ONLY_PINNED = 127
"""In place of the references of a block that pins hold and nobody else does."""

_COUNTS = {count: count for count in range(MOST_REFERENCES)}


def block_map(pool: BlockPool, pins: Mapping[int, int]) -> bytes:
    """A byte a block: its references but for pins', shifted by one, at most MOST_REFERENCES, or ONLY_PINNED; and in the
    lowest bit whether its contents have a name, so that others can find them. ``pins``: references that are pins', by
    block."""
    references = bytearray(map(_COUNTS.get, pool.ref_counts, repeat(MOST_REFERENCES)))
    for block_id, count in pins.items():
        others = pool.ref_counts[block_id] - count
        references[block_id] = min(others, MOST_REFERENCES) if others else ONLY_PINNED
    named = bytes(map(is_not, pool.names, repeat(None)))
    # As two long numbers: no byte is above 127, so none runs over into its neighbour.
    both = (int.from_bytes(references, "little") << 1) | int.from_bytes(named, "little")
    return both.to_bytes(pool.num_blocks, "little")
