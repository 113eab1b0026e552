"""Names for contents: a chained 128-bit hash says which tokens, after which others, under which settings."""

import struct
from collections.abc import Iterable, Sequence
from functools import partial
from hashlib import blake2b

DIGEST_BYTES = 16
TOKEN_BYTES = 4

_digest = partial(blake2b, digest_size=DIGEST_BYTES)


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian 32-bit numbers."""
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


class BlockHasher:
    """Hashes blocks of ``block_size`` tokens, each together with everything before it.

    ``fingerprint`` stands for everything besides the tokens that changes keys and values: weights, position settings,
    dtype, back end (design, Decided 3). The hash is blake2b, so it is the same in every process.
    """

    def __init__(self, block_size: int, fingerprint: bytes) -> None:
        self._fingerprint = fingerprint
        self._pack_block = struct.Struct(f"<{block_size}I").pack
        self.block_size = block_size

    def root(self, salt: str | None) -> bytes:
        """Parent of a sequence's first block. Sequences with different salts never share a hash (spec, B11)."""
        mark = b"\x00" if salt is None else b"\x01" + salt.encode()
        return blake2b(mark, digest_size=DIGEST_BYTES, key=blake2b(self._fingerprint).digest()).digest()

    def extend(self, hashes: list[bytes], root: bytes, token_ids: Sequence[int], num_tokens: int) -> None:
        """Append to ``hashes`` the hash of each full block among the first ``num_tokens`` that it lacks."""
        size = self.block_size
        packed = pack_tokens(token_ids[len(hashes) * size : num_tokens - num_tokens % size])
        parent = hashes[-1] if hashes else root
        for start in range(0, len(packed), size * TOKEN_BYTES):
            parent = _digest(parent + packed[start : start + size * TOKEN_BYTES]).digest()
            hashes.append(parent)

    def hash_each(self, parents: Iterable[bytes], blocks: Iterable[Sequence[int]]) -> list[bytes]:
        """The hashes of single blocks of tokens, each after its own parent."""
        pack = self._pack_block
        return [_digest(parent + pack(*token_ids)).digest() for parent, token_ids in zip(parents, blocks, strict=True)]
