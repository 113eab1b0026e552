"""What every block of the pool is used for at one moment. Questions alone, asked between two steps."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from octavo.core.pool import BlockPool
from octavo.core.request import Request


class BlockStates(NamedTuple):
    """Counts of blocks. Each is ``free`` (holds nothing), ``cached`` (can be hit, in no table, may be evicted),
    ``pinned`` (in no table, must stay) or ``active`` (in a table, or read by a step in flight). ``shared`` ones are
    active, in the tables of several sequences."""

    free: int
    cached: int
    pinned: int
    active: int
    shared: int


class SlotUse(NamedTuple):
    """Of the blocks in tables: their slots, those of them that hold a token, and how many blocks more it would take if
    no two sequences shared any."""

    num_slots: int
    num_filled: int
    num_saved_blocks: int


def block_states(pool: BlockPool, pins: Counter[int], held: Sequence[int]) -> BlockStates:
    """``pins``, ``held``: blocks that are referred to by other than tables, how often, and one entry a time."""
    ref_counts, shared, pinned = pool.ref_counts, pool.num_shared, 0
    others = pins + Counter(held) if held else pins
    for block_id, count in others.items():
        num_tables = ref_counts[block_id] - count
        shared -= ref_counts[block_id] > 1 >= num_tables
        pinned += num_tables == 0 and block_id in pins
    return BlockStates(
        free=pool.num_free - pool.num_cached,
        cached=pool.num_cached,
        pinned=pinned,
        active=pool.num_blocks - pool.num_free - pinned,
        shared=shared,
    )


def slot_use(requests: Iterable[Request], block_size: int) -> SlotUse:
    """``requests``: all that have tables. A block that several share counts once; what has not landed is not there."""
    full, filled, num_entries = set[int](), dict[int, int](), 0
    for request in requests:
        if request.tables is None:
            continue
        num_tokens = request.num_landed_tokens
        num_full = num_tokens // block_size
        for table, start in zip(request.tables.groups, request.tables.starts, strict=True):
            full.update(table[start:num_full])
            num_entries += len(table) - start
            for index in range(max(num_full, start), len(table)):
                num_filled = max(0, num_tokens - index * block_size)
                filled[table[index]] = max(num_filled, filled.get(table[index], 0))
    for block_id in full.intersection(filled):
        del filled[block_id]
    num_blocks = len(full) + len(filled)
    return SlotUse(num_blocks * block_size, len(full) * block_size + sum(filled.values()), num_entries - num_blocks)
