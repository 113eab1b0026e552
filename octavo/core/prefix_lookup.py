"""Which prefix of a sequence the cache holds, and where. Questions alone: nothing here changes anything."""

from collections.abc import Sequence
from operator import attrgetter

from octavo.core.child_index import ChildIndex
from octavo.core.hashing import HashChain, group_names
from octavo.core.host_pool import HostPool
from octavo.core.kv_types import CacheConfig, PrefixHit
from octavo.core.pool import BlockPool
from octavo.core.table import SwappedTables


class PrefixLookup:
    """Looks in the pool, then in the host's, then on disk, and last for the head of a cached block (``children``)."""

    def __init__(self, config: CacheConfig, pool: BlockPool, host: HostPool, children: ChildIndex) -> None:
        self._block_size = config.block_size
        self._num_groups = config.num_groups
        self._pool = pool
        self._host = host
        self._children = children

    def longest(
        self, chain: HashChain | None, token_ids: Sequence[int], swapped: SwappedTables | None = None
    ) -> PrefixHit:
        """The longest prefix of these tokens that is there: whole blocks in the cache, on the device and then on the
        host; and after them what was ``swapped`` out of this sequence, or the head of a cached block.

        ``chain``: the hashes of the sequence's full blocks; None reads nothing from the cache. At least the last token
        is left to compute (design, Decided 4).
        """
        hashes = chain.hashes[: (len(token_ids) - 1) // self._block_size] if chain else ()
        names = [group_names(group, hashes) for group in range(self._num_groups)]
        chains = [self._pool.lookup_chain(group) for group in names]
        length = min(map(len, chains))
        block_ids = tuple(tuple(blocks[:length]) for blocks in chains)
        more = [self._host.pool.lookup_chain(group[length:]) for group in names] if self._host.pool.num_blocks else []
        reached = length + min(map(len, more), default=0)
        leads_on = swapped is not None and swapped.num_tokens > reached * self._block_size
        if swapped is not None and leads_on and swapped.first_block <= reached:
            return self._swapped_hit(block_ids, more, swapped)
        host_ids = tuple(tuple(blocks[: reached - length]) for blocks in more)
        slots, reached = self._lookup_on_disk(names, reached)
        tail_ids, num_tail_tokens = self._lookup_tail(chain, token_ids, reached) if chain else ((), 0)
        return PrefixHit(reached * self._block_size + num_tail_tokens, block_ids, host_ids, tail_ids, slots)

    def _lookup_on_disk(
        self, names: Sequence[Sequence[bytes]], reached: int
    ) -> tuple[tuple[tuple[int, ...], ...], int]:
        """Slots of the disk tier, one tuple a group, that hold the blocks from ``reached`` on, and where they end."""
        pool = self._host.disk.pool
        chains = [pool.lookup_chain(group[reached:]) for group in names] if pool.num_named else []
        length = min(map(len, chains), default=0)
        return tuple(tuple(chain[:length]) for chain in chains), reached + length

    def _lookup_tail(self, chain: HashChain, token_ids: Sequence[int], index: int) -> tuple[tuple[int, ...], int]:
        """Blocks, one a group, that hold the most leading tokens of logical block ``index``, and how many. Where a salt
        enters with that block, what others have is of use only as far as the sequence's own tokens are open."""
        start = index * self._block_size
        wanted = token_ids[start : min(start + self._block_size, len(token_ids) - 1)]
        sources = ((chain.parents[index], wanted), (chain.open_parent(index), wanted[: chain.num_open_in_block]))
        matches = [match for parent, head in sources if parent and (match := self._children.best(parent, head))]
        best = max(matches, key=attrgetter("num_tokens"), default=None)
        if best is None:
            return (), 0
        found = [
            self._pool.lookup(name)
            for group in range(self._num_groups)
            for name in group_names(group, [best.block_hash])
        ]
        tail_ids = tuple(block_id for block_id in found if block_id is not None)
        return (tail_ids, best.num_tokens) if len(tail_ids) == len(found) else ((), 0)

    def _swapped_hit(
        self, block_ids: tuple[tuple[int, ...], ...], more: Sequence[list[int]], swapped: SwappedTables
    ) -> PrefixHit:
        """All of a sequence that was swapped out: its cached blocks, on the device and then (``more``) on the host, and
        its own."""
        own = max(swapped.first_block, len(block_ids[0]))
        chains = zip(more, swapped.host_ids, strict=True)
        host_ids = tuple(
            (*cached[: own - len(block_ids[0])], *kept[own - swapped.first_block :]) for cached, kept in chains
        )
        return PrefixHit(swapped.num_tokens, block_ids, host_ids)
