"""Block tables: where each logical block of a sequence lies, one list a layer group."""

from dataclasses import dataclass


class BlockTables:
    """Tables of one sequence; made, changed and freed by the KVCacheManager alone. ``row_id``: the row by which the
    runner knows the sequence.

    ``groups[g][i]`` is the physical block of logical block i for layer group g; all groups are equally long.
    ``capacity`` is the number of leading positions that may be written without asking the manager: everything that
    the blocks can hold, or less where the tail is shared with a fork and has to be copied first.
    """

    __slots__ = ("capacity", "groups", "row_id")

    def __init__(self, num_groups: int, row_id: int) -> None:
        self.row_id = row_id
        self.groups: tuple[list[int], ...] = tuple([] for _ in range(num_groups))
        self.capacity = 0

    @property
    def num_blocks(self) -> int:
        """Logical blocks, the same in every group."""
        return len(self.groups[0])


@dataclass(frozen=True, slots=True)
class SwappedTables:
    """A preempted sequence that keeps its computed tokens, ``num_tokens`` of them: logical blocks from ``first_block``
    on lie in the host pool, ``host_ids[g][i]`` for group g; those before it are in the prefix cache, if they still
    are (design, Decided 7)."""

    num_tokens: int
    first_block: int
    host_ids: tuple[list[int], ...]
