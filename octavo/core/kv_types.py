"""What goes into the KV cache's manager and comes out of it."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from octavo.core.step import NO_BLOCK, BlockCopy, TableWrite
from octavo.core.table import BlockTables

UNBOUNDED = 1 << 62
"""More tokens than a sequence ever has."""


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Size and identity of the KV memory. ``fingerprint``: see BlockHasher. ``num_host_blocks``, ``keep_evicted``: size
    of the host pool, and whether it keeps what the prefix cache evicts. ``num_disk_slots``: blocks of the disk tier.
    ``pin_quota``: share of the pool that pins may hold.

    ``windows``: of each layer group, how many tokens a row sees, itself included, or None for all; empty where every
    group sees all. ``max_unlanded_tokens``: how far plans may run ahead of what has landed of a sequence; together with
    the window it says how many blocks a sequence can hold at once.
    """

    num_blocks: int
    block_size: int = 16
    num_groups: int = 1
    enable_prefix_caching: bool = True
    fingerprint: bytes = b""
    num_host_blocks: int = 0
    keep_evicted: bool = False
    num_disk_slots: int = 0
    eviction_policy: str = "lru"
    pin_quota: float = 0.25
    windows: tuple[int | None, ...] = ()
    max_unlanded_tokens: int = 0

    def __post_init__(self) -> None:
        assert len(self.windows) in (0, self.num_groups), "a window for each group, or for none"
        assert not self.has_windows or self.max_unlanded_tokens, (
            "what a window keeps depends on how far plans run ahead"
        )

    @property
    def has_windows(self) -> bool:
        return self.windows.count(None) < len(self.windows)

    def window(self, group: int) -> int | None:
        """Tokens that a row sees in this layer group, itself included; None: all."""
        return self.windows[group] if self.windows else None

    def first_block(self, group: int, num_tokens: int) -> int:
        """The first logical block that is still needed in this layer group once ``num_tokens`` tokens are computed:
        the row after them sees it, those before it never again."""
        window = self.window(group)
        return 0 if window is None else max(0, num_tokens - window + 1) // self.block_size

    def most_blocks(self, group: int) -> int:
        """Blocks of this layer group that a sequence has at once, however long it is. Before it gets more it gives
        those back that lie behind the window of what has landed."""
        window = self.window(group)
        return UNBOUNDED if window is None else -(-(window - 1 + self.max_unlanded_tokens) // self.block_size) + 1

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks, over all layer groups, that a sequence has at most while it grows to ``num_tokens``."""
        return self._num_blocks_for(-(-num_tokens // self.block_size))

    def _num_blocks_for(self, num_logical: int) -> int:
        if not self.has_windows:
            return num_logical * self.num_groups
        return sum(min(num_logical, self.most_blocks(group)) for group in range(self.num_groups))

    @property
    def num_token_slots(self) -> int:
        """Tokens of one sequence that the whole pool could hold."""
        return self.num_tokens_in(self.num_blocks)

    def num_tokens_held(self, longest: int) -> int:
        """Tokens that the whole pool could hold, in sequences of at most ``longest`` tokens."""
        if not self.has_windows or self.num_token_slots <= longest:
            return self.num_token_slots
        return self.num_blocks * longest // self.num_blocks_for(longest)

    def num_tokens_in(self, num_blocks: int) -> int:
        """Tokens of one sequence that so many blocks could hold; UNBOUNDED where all groups have windows that fit."""
        if not self.has_windows:
            return num_blocks // self.num_groups * self.block_size
        if num_blocks >= self._num_blocks_for(UNBOUNDED):
            return UNBOUNDED
        return (bisect_right(range(num_blocks + 1), num_blocks, key=self._num_blocks_for) - 1) * self.block_size

    @property
    def max_pinned_blocks(self) -> int:
        """The quota; nothing can be pinned that the prefix cache does not keep."""
        return int(self.num_blocks * self.pin_quota) if self.enable_prefix_caching else 0

    @property
    def no_pins_because(self) -> str | None:
        """The setting that leaves no room for any pin, in a sentence; None: there is some."""
        if not self.enable_prefix_caching:
            return "pins stay in the prefix cache, which is off (enable_prefix_caching); turn it on to pin"
        if self.max_pinned_blocks == 0:
            return f"pin_quota {self.pin_quota:g} of a pool of {self.num_blocks} blocks leaves none to pins; raise it"
        return None


class Place(NamedTuple):
    """Where a logical block of a sequence comes from: a block of the host pool, or a slot of the disk tier."""

    logical_block: int
    source_id: int


class PrefixHit(NamedTuple):
    """Tokens that need not be computed, and where they lie, a tuple each layer group. ``block_ids[g][i]`` is the block
    of the pool that holds logical block i, or NO_BLOCK where group g needs it no more (see CacheConfig.first_block) or
    has it elsewhere: ``host_places[g]`` lie in the host pool, ``disk_places[g]`` on disk. The last tokens lie perhaps
    at the head of block ``tail_ids[g]``, which is to be copied. Valid until the next commit."""

    num_tokens: int
    block_ids: tuple[tuple[int, ...], ...]
    host_places: tuple[tuple[Place, ...], ...] = ()
    tail_ids: tuple[int, ...] = ()
    disk_places: tuple[tuple[Place, ...], ...] = ()

    @property
    def needs_moves(self) -> bool:
        """Is some of it not on the device yet?"""
        return any(self.host_places) or any(self.disk_places)

    @property
    def num_blocks(self) -> int:
        """Logical blocks that it covers, without the tail."""
        return len(self.block_ids[0])

    @property
    def num_device_blocks(self) -> int:
        """Leading logical blocks for which nothing has to come from elsewhere."""
        places = (place.logical_block for group in (*self.host_places, *self.disk_places) for place in group)
        return min(places, default=self.num_blocks)

    @property
    def live_ids(self) -> list[Sequence[int]]:
        """Of each group the blocks of the pool."""
        return [[i for i in ids if i != NO_BLOCK] if NO_BLOCK in ids else ids for ids in self.block_ids]

    def needed(self, config: CacheConfig) -> "PrefixHit":
        """The same, without blocks that only ``without_tail`` needs: the tokens of the tail are in the window too."""
        if not self.tail_ids or not config.has_windows:
            return self
        firsts = [config.first_block(group, self.num_tokens) for group in range(config.num_groups)]
        block_ids = ((NO_BLOCK,) * first + ids[first:] for first, ids in zip(firsts, self.block_ids, strict=True))
        return self._replace(
            block_ids=tuple(block_ids),
            host_places=_from(firsts, self.host_places),
            disk_places=_from(firsts, self.disk_places),
        )

    def without_tail(self, block_size: int) -> "PrefixHit":
        """The same, of whole blocks only, where the last of it would be a copy."""
        if not self.tail_ids:
            return self
        return self._replace(num_tokens=self.num_tokens - self.num_tokens % block_size, tail_ids=())


def _from(firsts: Sequence[int], groups: Sequence[tuple[Place, ...]]) -> tuple[tuple[Place, ...], ...]:
    """Of each group the places from a logical block on."""
    return tuple(
        tuple(place for place in places if place.logical_block >= first)
        for first, places in zip(firsts, groups, strict=False)
    )


class Extension(NamedTuple):
    """What a sequence got: new table entries, and copies to make before anything is written."""

    writes: list[TableWrite]
    copies: list[BlockCopy]


class Allocation(NamedTuple):
    """The tables of a new sequence, and copies to make before anything is written."""

    tables: BlockTables
    copies: list[BlockCopy]


class FilledBlocks(NamedTuple):
    """Logical blocks ``first``, ``first`` + 1, ... of a sequence, full and landed: their names, what each follows, and
    their packed tokens."""

    first: int
    hashes: list[bytes]
    parents: list[bytes]
    packed: Sequence[bytes]

    def without_first(self, start: int) -> "FilledBlocks":
        """Those from logical block ``start`` on."""
        skipped = start - self.first
        if skipped <= 0:
            return self
        return FilledBlocks(start, self.hashes[skipped:], self.parents[skipped:], self.packed[skipped:])
