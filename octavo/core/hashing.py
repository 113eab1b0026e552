"""Names for contents: a chained 128-bit hash says which tokens, after which others, under which settings."""

import struct
from collections.abc import Sequence
from hashlib import blake2b

DIGEST_BYTES = 16


class BlockHasher:
    """Hashes blocks of ``block_size`` tokens, each together with everything before it.

    ``fingerprint`` stands for everything besides the tokens that changes keys and values: weights, position settings,
    dtype, back end (design, Decided 3). The hash is blake2b, so it is the same in every process.
    """

    def __init__(self, block_size: int, fingerprint: bytes) -> None:
        self._pack = struct.Struct(f"<{block_size}I").pack
        self._fingerprint = fingerprint
        self.block_size = block_size

    def root(self, salt: str | None) -> bytes:
        """Parent of a sequence's first block. Sequences with different salts never share a hash (spec, B11)."""
        mark = b"\x00" if salt is None else b"\x01" + salt.encode()
        return blake2b(mark, digest_size=DIGEST_BYTES, key=blake2b(self._fingerprint).digest()).digest()

    def extend(self, hashes: list[bytes], root: bytes, token_ids: Sequence[int], num_tokens: int) -> None:
        """Append to ``hashes`` the hash of each full block among the first ``num_tokens`` that it lacks."""
        size = self.block_size
        parent = hashes[-1] if hashes else root
        for start in range(len(hashes) * size, num_tokens - size + 1, size):
            packed = self._pack(*token_ids[start : start + size])
            parent = blake2b(parent + packed, digest_size=DIGEST_BYTES).digest()
            hashes.append(parent)
