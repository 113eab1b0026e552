"""What goes into the KV cache's manager and comes out of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from octavo.core.step import BlockCopy, TableWrite
from octavo.core.table import BlockTables


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Size and identity of the KV memory. ``fingerprint``: see BlockHasher. ``num_host_blocks``, ``keep_evicted``: size
    of the host pool, and whether it keeps what the prefix cache evicts. ``num_disk_slots``: blocks of the disk tier.
    ``pin_quota``: share of the pool that pins may hold."""

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

    @property
    def num_token_slots(self) -> int:
        """Tokens of one sequence that the whole pool could hold."""
        return self.num_tokens_in(self.num_blocks)

    def num_tokens_in(self, num_blocks: int) -> int:
        """Tokens of one sequence that so many blocks could hold."""
        return num_blocks // self.num_groups * self.block_size

    @property
    def max_pinned_blocks(self) -> int:
        """The quota; nothing can be pinned that the prefix cache does not keep."""
        return int(self.num_blocks * self.pin_quota) if self.enable_prefix_caching else 0


class PrefixHit(NamedTuple):
    """Tokens that need not be computed, and where they lie, one tuple of ids a layer group: in blocks of the pool, then
    in blocks of the host pool, then in slots of the disk tier, and the last of them perhaps at the head of block
    ``tail_ids[g]``, which is to be copied. Valid until the next commit."""

    num_tokens: int
    block_ids: tuple[tuple[int, ...], ...]
    host_ids: tuple[tuple[int, ...], ...] = ()
    tail_ids: tuple[int, ...] = ()
    disk_slots: tuple[tuple[int, ...], ...] = ()

    @property
    def needs_moves(self) -> bool:
        """Is some of it not on the device yet?"""
        return any(self.host_ids) or any(self.disk_slots)

    def without_tail(self, block_size: int) -> "PrefixHit":
        """The same, of whole blocks only, where the last of it would be a copy."""
        if not self.tail_ids:
            return self
        return self._replace(num_tokens=self.num_tokens - self.num_tokens % block_size, tail_ids=())


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
