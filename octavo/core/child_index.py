"""Cached blocks by what they follow: for hits that end inside a block (design, Decided 5)."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from octavo.core.hashing import TOKEN_BYTES, pack_tokens, unpack_tokens

TOKEN_BITS = 8 * TOKEN_BYTES
NO_ENTRY = (b"", b"")


class ChildMatch(NamedTuple):
    """The block called ``block_hash`` begins with ``num_tokens`` tokens that were looked for."""

    block_hash: bytes
    num_tokens: int


class ChildIndex:
    """For each parent its children: one, mostly, and the others sorted by their tokens, so that the one that agrees
    longest with some tokens is a neighbour of the place where these would stand.

    Tokens are packed (``hashing.pack_tokens``): small, compared at once, and nothing for the garbage collector.
    """

    def __init__(self) -> None:
        self._entries: dict[bytes, tuple[bytes, bytes]] = {}  # hash -> parent, packed tokens
        self._first: dict[bytes, bytes] = {}
        self._others: dict[bytes, list[tuple[bytes, bytes]]] = {}
        self._heads: dict[bytes, tuple[bytes, bytes]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, parents: list[bytes], hashes: list[bytes], blocks: Sequence[bytes]) -> None:
        """Blocks that are cached now: each follows its parent and holds these packed tokens."""
        self._entries.update(zip(hashes, zip(parents, blocks, strict=True), strict=True))
        first = list(map(self._first.setdefault, parents, hashes))
        if first == hashes:
            return
        for parent, packed, block_hash, known in zip(parents, blocks, hashes, first, strict=True):
            if known != block_hash:
                self._add_other(parent, (packed, block_hash))

    def add_head(self, parent: bytes, block_hash: bytes, packed: bytes) -> None:
        """A cached block can be found after a second ``parent`` too, but only as far as its first tokens, ``packed``,
        go; or farther than before."""
        _, known = self._heads.get(block_hash, NO_ENTRY)
        if len(known) >= len(packed):
            return
        if known:
            self._remove_other(parent, (known, block_hash))
        self._heads[block_hash] = (parent, packed)
        self._add_other(parent, (packed, block_hash))

    def remove(self, block_hashes: Sequence[bytes]) -> None:
        """These blocks, where they are here, are cached no more."""
        entries, first = self._entries, self._first
        for block_hash in block_hashes:
            parent, packed = entries.pop(block_hash, NO_ENTRY)
            if first.get(parent) == block_hash:
                del first[parent]
            elif packed:
                self._remove_other(parent, (packed, block_hash))
        if self._heads:
            for block_hash in self._heads.keys() & set(block_hashes):
                parent, packed = self._heads.pop(block_hash)
                self._remove_other(parent, (packed, block_hash))

    def best(self, parent: bytes, token_ids: Sequence[int]) -> ChildMatch | None:
        """The child of ``parent`` that shares most leading tokens with ``token_ids``, if one shares any."""
        packed = pack_tokens(token_ids)
        near = []
        if parent in self._first:
            first = self._first[parent]
            near.append((self._entries[first][1], first))
        if parent in self._others:
            others = self._others[parent]
            at = bisect_left(others, (packed, b""))
            near += others[max(at - 1, 0) : at + 1]
        first_token = packed[:TOKEN_BYTES]
        matches = [
            ChildMatch(block_hash, common_length(tokens, packed))
            for tokens, block_hash in near
            if first_token and tokens.startswith(first_token)
        ]
        return max(matches, key=attrgetter("num_tokens"), default=None)

    def token_ids(self, block_hash: bytes) -> list[int]:
        """What the block of this hash holds; nothing, if it is not here."""
        return unpack_tokens(self._entries.get(block_hash, NO_ENTRY)[1])

    def clear(self, kept: Iterable[bytes] = ()) -> None:
        """Forget all but the blocks ``kept``, where they are here."""
        entries = {block_hash: self._entries[block_hash] for block_hash in kept if block_hash in self._entries}
        for index in (self._entries, self._first, self._others, self._heads):
            index.clear()
        self.add([parent for parent, _ in entries.values()], list(entries), [packed for _, packed in entries.values()])

    def _add_other(self, parent: bytes, entry: tuple[bytes, bytes]) -> None:
        others = self._others.setdefault(parent, [])
        at = bisect_left(others, entry)
        if others[at : at + 1] != [entry]:
            others.insert(at, entry)

    def _remove_other(self, parent: bytes, entry: tuple[bytes, bytes]) -> None:
        others = self._others[parent]
        del others[bisect_left(others, entry)]
        if not others:
            del self._others[parent]


def common_length(first: bytes, second: bytes) -> int:
    """How many leading tokens two packed sequences share."""
    length = min(len(first), len(second))
    differing = int.from_bytes(first[:length], "little") ^ int.from_bytes(second[:length], "little")
    if not differing:
        return length // TOKEN_BYTES
    return ((differing & -differing).bit_length() - 1) // TOKEN_BITS
