"""Names for contents: a chained 128-bit hash says which tokens, after which others, under which settings."""

import struct
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b

DIGEST_BYTES = 16
TOKEN_BYTES = 4

_digest = partial(blake2b, digest_size=DIGEST_BYTES)


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian 32-bit numbers."""
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def unpack_tokens(packed: bytes) -> list[int]:
    """What ``pack_tokens`` was given."""
    return [token_id for (token_id,) in struct.iter_unpack("<I", packed)]


def group_suffix(group: int) -> bytes:
    """What a name has after the hash of the contents, in layer group ``group`` (design, Decided 6)."""
    return group.to_bytes(1, "little") if group else b""


def group_names(group: int, hashes: Sequence[bytes]) -> Sequence[bytes]:
    """What a pool calls these contents, as layer group ``group`` has them."""
    if group == 0:
        return hashes
    suffix = group_suffix(group)
    return [block_hash + suffix for block_hash in hashes]


class HashChain:
    """The names of one sequence's full blocks, in order: ``hashes``; ``blocks`` are their packed tokens. ``parents[i]``
    is what block i follows, one more than there are hashes.

    A block's parent is the hash before it, or the chain's root. A sequence may begin with blocks that are open to all
    and go on under its own salt: then ``salted_at`` says with which block the salt enters, and that block's parent is
    the last open one together with the salt; its first ``num_open_in_block`` tokens are open as well.
    """

    __slots__ = ("_root", "_salted_root", "blocks", "hashes", "num_open_in_block", "parents", "salted_at")

    def __init__(
        self, root: bytes, salted_at: int = 0, num_open_in_block: int = 0, salted_root: bytes | None = None
    ) -> None:
        self.salted_at = salted_at
        self.num_open_in_block = num_open_in_block
        self.hashes: list[bytes] = []
        self.blocks: list[bytes] = []
        self._root = root
        self._salted_root = salted_root
        self.parents = [self._parent_after(root)]

    @property
    def has_salt_ahead(self) -> bool:
        """Does the salt enter with a block after the next one?"""
        return self._salted_root is not None and len(self.hashes) < self.salted_at

    def append(self, block_hash: bytes) -> None:
        self.hashes.append(block_hash)
        self.parents.append(self._parent_after(block_hash) if self._salted_root else block_hash)

    def open_parent(self, index: int) -> bytes | None:
        """What block ``index`` would follow if it were open to all as those before it are; None if it follows just
        that, or what is before it is not open."""
        if self._salted_root is None or index != self.salted_at:
            return None
        return self.hashes[index - 1] if index else self._root

    def copy(self) -> "HashChain":
        chain = self.without_hashes()
        chain.hashes = self.hashes.copy()
        chain.blocks = self.blocks.copy()
        chain.parents = self.parents.copy()
        return chain

    def without_hashes(self) -> "HashChain":
        """The chain as it was when it began."""
        return HashChain(self._root, self.salted_at, self.num_open_in_block, self._salted_root)

    def _parent_after(self, before: bytes) -> bytes:
        if self._salted_root is None or len(self.hashes) != self.salted_at:
            return before
        return _digest(before + self._salted_root).digest()


class BlockHasher:
    """Hashes blocks of ``block_size`` tokens, each together with everything before it.

    ``fingerprint`` stands for everything besides the tokens that changes keys and values: weights, position settings,
    dtype, back end (design, Decided 3). The hash is blake2b, so it is the same in every process.
    """

    def __init__(self, block_size: int, fingerprint: bytes) -> None:
        self._fingerprint = fingerprint
        self.block_size = block_size

    def chain(self, salt: str | None, num_open_tokens: int = 0) -> HashChain:
        """The chain of a new sequence. Sequences with different salts never share a hash (spec, B11), but for whole
        blocks among the first ``num_open_tokens`` tokens, which are as without a salt."""
        if salt is None:
            return HashChain(self._root(b"\x00"))
        salted = self._root(b"\x01" + salt.encode())
        if num_open_tokens == 0:
            return HashChain(salted)
        return HashChain(self._root(b"\x00"), *divmod(num_open_tokens, self.block_size), salted)

    def extend(self, chain: HashChain, token_ids: Sequence[int], num_tokens: int) -> None:
        """Append to ``chain`` the hash of each full block among the first ``num_tokens`` that it lacks."""
        size = self.block_size
        start, end = len(chain.hashes) * size, num_tokens - num_tokens % size
        if start >= end:
            return
        packed = pack_tokens(token_ids[start:end])
        blocks = [block for (block,) in struct.iter_unpack(f"{size * TOKEN_BYTES}s", packed)]
        chain.blocks += blocks
        if chain.has_salt_ahead:
            for block in blocks:
                chain.append(_digest(chain.parents[-1] + block).digest())
            return
        hashes, parent = [], chain.parents[-1]
        for block in blocks:
            parent = _digest(parent + block).digest()
            hashes.append(parent)
        chain.hashes += hashes
        chain.parents += hashes

    def hash_tail(self, parent: bytes, tail: bytes) -> bytes:
        """The name of a block that is not full but holds the packed tokens ``tail``."""
        return _digest(parent + tail).digest()

    def _root(self, mark: bytes) -> bytes:
        return blake2b(mark, digest_size=DIGEST_BYTES, key=blake2b(self._fingerprint).digest()).digest()
