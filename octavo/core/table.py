"""Block tables: where each logical block of a sequence lies, one list a layer group."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.core.retention import Retention


class BlockTables:
    """Tables of one sequence; made, changed and freed by the KVCacheManager alone. ``row_id``: the row by which the
    runner knows the sequence. ``retention``: how long the prefix cache keeps what the sequence gives up.

    ``groups[g][i]`` is the physical block of logical block i for layer group g; all groups are equally long. The first
    ``starts[g]`` entries are NO_BLOCK: they lie behind the window of group g. All others are blocks.
    ``capacity`` is the number of leading positions that may be written without asking the manager: everything that
    the blocks can hold, or less where the tail is shared with a fork and has to be copied first.
    """

    __slots__ = ("capacity", "groups", "retention", "row_id", "starts")

    def __init__(self, num_groups: int, row_id: int) -> None:
        self.row_id = row_id
        self.groups: tuple[list[int], ...] = tuple([] for _ in range(num_groups))
        self.starts = [0] * num_groups
        self.capacity = 0
        self.retention: Retention | None = None

    @property
    def num_blocks(self) -> int:
        """Logical blocks, the same in every group."""
        return len(self.groups[0])

    @property
    def live_groups(self) -> Iterator[list[int]]:
        """Of each group the blocks that it has."""
        return (table[start:] if start else table for table, start in zip(self.groups, self.starts, strict=True))


@dataclass(frozen=True, slots=True)
class SwappedTables:
    """A preempted sequence that keeps its computed tokens, ``num_tokens`` of them.

    ``host_ids[g]``: where the last blocks of group g lie in the host pool. Those before them are in the prefix cache,
    if they still are (design, Decided 7), or behind the window of the group.
    """

    num_tokens: int
    host_ids: tuple[list[int], ...]
