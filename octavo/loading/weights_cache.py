"""Packed weights that outlive a process: which file is a model's, what it must be made of, when it is worth having."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from octavo.kernels.interface import Linear, Ops
from octavo.kernels.stored_linear import StoredLinear, StoresLinears
from octavo.loading.header import Header
from octavo.loading.pull import cache_dir
from octavo.loading.weights_file import Names, read_weights, write_weights

LEAST_BYTES = 16 << 20
"""Smaller weights are packed sooner than a file is opened."""


class LinearCache:
    """The linears of one model while it is loaded: from the file, if it was made of the same; else made, and kept
    by ``save``."""

    def __init__(self, ops: StoresLinears, path: Path, key: bytes) -> None:
        self._ops = ops
        self._path, self._key = path, key
        self._found = read_weights(path, key)
        self._made: dict[Names, StoredLinear] = {}

    def linear(self, names: Names, make: Callable[[], Linear]) -> Linear:
        """The linear that joins the weights ``names``."""
        stored = self._found.get(names)
        if stored is not None:
            return self._ops.restore_linear(stored)
        linear = make()
        self._made[names] = self._ops.store_linear(linear)
        return linear

    def save(self) -> None:
        """Write the file if it lacks something that was asked for."""
        if self._made:
            write_weights(self._path, self._key, self._found | self._made)


def open_linear_cache(header: Header, ops: Ops, settings: str, made_of: bytes, num_bytes: int) -> LinearCache | None:
    """
    ``settings``: what besides the files changes how weights are kept. ``made_of``: stands for the files' contents
    (``checkpoint.fingerprint``). ``num_bytes``: what the weights take in memory. None where a file is not worth it, or
    the back end's linears cannot be kept.
    """
    if num_bytes < LEAST_BYTES or not isinstance(ops, StoresLinears):
        return None
    place = hashlib.blake2b("\0".join([str(header.path.resolve()), settings]).encode(), digest_size=16)
    times = [str(path.stat().st_mtime_ns) for path in header.files]
    tied = "tied" if header.config.tie_embeddings else "untied"
    key = hashlib.blake2b("\0".join([ops.linear_layout, settings, tied, *times]).encode() + made_of, digest_size=16)
    return LinearCache(ops, cache_dir() / "weights" / f"{place.hexdigest()}.weights", key.digest())
