"""Which prefix of a sequence the cache holds, and where. Questions alone: nothing here changes anything."""

from collections.abc import Mapping, Sequence
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import NamedTuple

from octavo.core.child_index import ChildIndex
from octavo.core.hashing import HashChain, group_names
from octavo.core.host_pool import HostPool
from octavo.core.kv_types import CacheConfig, Place, PrefixHit
from octavo.core.pool import BlockPool
from octavo.core.step import NO_BLOCK
from octavo.core.table import SwappedTables

NONE_OWN: Mapping[int, int] = MappingProxyType({})


class _Found(NamedTuple):
    """Blocks of one layer group, by where they lie. ``block_ids``: see PrefixHit; it may end before the others do."""

    block_ids: list[int]
    host: list[Place]
    disk: list[Place]

    @property
    def end(self) -> int:
        """Of a chain that goes from the device to the host and on to the disk."""
        return len(self.block_ids) + len(self.host) + len(self.disk)


class PrefixLookup:
    """Looks in the pool, then in the host's, then on disk, and last for the head of a cached block (``children``)."""

    def __init__(self, config: CacheConfig, pool: BlockPool, host: HostPool, children: ChildIndex) -> None:
        self._config = config
        self._block_size = config.block_size
        groups = range(config.num_groups)
        self._windowed = [group for group in groups if config.window(group) is not None]
        self._global = [group for group in groups if config.window(group) is None]
        self._pool = pool
        self._host = host
        self._pools = (pool, host.pool, host.disk.pool)
        self._children = children

    def longest(
        self, chain: HashChain | None, token_ids: Sequence[int], swapped: SwappedTables | None = None
    ) -> PrefixHit:
        """The longest prefix of these tokens that is there: whole blocks in the cache, on the device, on the host or on
        disk; and after them what was ``swapped`` out of this sequence, or the head of a cached block.

        A layer group that sees all tokens needs every block, one with a window those that the next row sees.
        ``chain``: the hashes of the sequence's full blocks; None reads nothing from the cache. At least the last token
        is left to compute (design, Decided 4).
        """
        hashes = chain.hashes[: (len(token_ids) - 1) // self._block_size] if chain else []
        found = {group: self._find_chain(group, hashes) for group in self._global}
        reached = min((chain.end for chain in found.values()), default=len(hashes))
        reached = self._longest_in_windows(hashes, reached)
        if swapped is not None and swapped.num_tokens > reached * self._block_size:
            hit = self._swapped_hit(hashes, swapped)
            if hit is not None:
                return hit
        for group in self._windowed:
            needed = range(self._first_block(group, reached), reached)
            found[group] = self._find(group, hashes, needed) or _Found([], [], [])
        tail_ids, num_tail_tokens = self._lookup_tail(chain, token_ids, reached) if chain else ((), 0)
        return _hit(reached * self._block_size + num_tail_tokens, reached, found, tail_ids)

    def may_reach(self, chain: HashChain, num_tokens: int) -> bool:
        """Can the longest prefix have ``num_tokens`` or more? False is certain: the last full block of so many is
        nowhere, and a layer group that sees all tokens needs it."""
        last = num_tokens // self._block_size - 1
        if last < 0 or not self._global:
            return True
        return last < len(chain.hashes) and self._is_cached(self._global[0], chain.hashes[last])

    def _find_chain(self, group: int, hashes: Sequence[bytes]) -> _Found:
        """The longest cached head of a chain."""
        names = group_names(group, hashes)
        found = _Found(self._pool.lookup_chain(names), [], [])
        for tier, places in ((self._host.pool, found.host), (self._host.disk.pool, found.disk)):
            if tier.num_named:
                places.extend(map(Place, range(found.end, len(names)), tier.lookup_chain(names[found.end :])))
        return found

    def _first_block(self, group: int, num_blocks: int) -> int:
        return self._config.first_block(group, num_blocks * self._block_size)

    def _longest_in_windows(self, hashes: Sequence[bytes], limit: int) -> int:
        """The most leading blocks, at most ``limit``, after which each group with a window has all that the next row
        sees."""
        length, index = limit, limit - 1
        starts = [(group, self._first_block(group, length)) for group in self._windowed]
        while starts and min(starts, key=itemgetter(1))[1] <= index:
            if not all(self._is_cached(group, hashes[index]) for group, start in starts if start <= index):
                length = index
                starts = [(group, self._first_block(group, length)) for group in self._windowed]
            index -= 1
        return length

    def _is_cached(self, group: int, block_hash: bytes) -> bool:
        (name,) = group_names(group, [block_hash])
        pool, host, disk = self._pools
        return not (pool.lookup(name) is None and host.lookup(name) is None and disk.lookup(name) is None)

    def _find(
        self, group: int, hashes: Sequence[bytes], indices: range, own: Mapping[int, int] = NONE_OWN
    ) -> _Found | None:
        """Where each of these logical blocks lies: in the cache, or, by index, in one of the sequence's ``own`` blocks
        of the host pool. None if one is nowhere."""
        found = _Found([NO_BLOCK] * indices.start, [], [])
        for index in indices:
            name = group_names(group, hashes[index : index + 1])
            block_id, host_id, slot = [pool.lookup(*name) if name else None for pool in self._pools]
            host_id = own.get(index, host_id)
            found.block_ids.append(NO_BLOCK if block_id is None else block_id)
            if block_id is not None:
                continue
            if host_id is not None:
                found.host.append(Place(index, host_id))
            elif slot is not None:
                found.disk.append(Place(index, slot))
            else:
                return None
        return found

    def _swapped_hit(self, hashes: Sequence[bytes], swapped: SwappedTables) -> PrefixHit | None:
        """All of a sequence that was swapped out, if what it left to the cache is still there. Its last block is its
        own unless it is full: it goes on writing there."""
        hashes, end = hashes[: swapped.num_tokens // self._block_size], -(-swapped.num_tokens // self._block_size)
        groups: dict[int, _Found] = {}
        for group, host_ids in enumerate(swapped.host_ids):
            own = dict(enumerate(host_ids, end - len(host_ids)))
            needed = range(self._config.first_block(group, swapped.num_tokens), end)
            found = self._find(group, hashes, needed, own)
            if found is None:
                return None
            groups[group] = found
        return _hit(swapped.num_tokens, end, groups, ())

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
            for group in range(self._config.num_groups)
            for name in group_names(group, [best.block_hash])
        ]
        tail_ids = tuple(block_id for block_id in found if block_id is not None)
        return (tail_ids, best.num_tokens) if len(tail_ids) == len(found) else ((), 0)


def _hit(num_tokens: int, num_blocks: int, groups: Mapping[int, _Found], tail_ids: tuple[int, ...]) -> PrefixHit:
    """Of the first ``num_blocks`` logical blocks of each group."""
    found = [groups[group] for group in range(len(groups))]
    block_ids = tuple([(*ids[:num_blocks], *[NO_BLOCK] * (num_blocks - len(ids))) for ids, _, _ in found])
    if not any(each.host or each.disk for each in found):
        return PrefixHit(num_tokens, block_ids, tail_ids=tail_ids)
    host = tuple([_before(each.host, num_blocks) for each in found])
    disk = tuple([_before(each.disk, num_blocks) for each in found])
    return PrefixHit(num_tokens, block_ids, host, tail_ids, disk)


def _before(places: list[Place], num_blocks: int) -> tuple[Place, ...]:
    return tuple(place for place in places if place.logical_block < num_blocks)
