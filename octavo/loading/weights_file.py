"""The file of packed weights: written once, mapped into memory by every later start.

    magic, version, size and digest of the header | header, JSON | ... tensors, each at a multiple of 64

The header holds the key of what the file was made of, its size, and for each linear the weights that it joins. A file
is written beside its place and renamed when it is whole and on the disk, so that whoever opens one sees all of it,
however many start at once.
"""

import hashlib
import json
import logging
import mmap
import shutil
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from octavo.kernels.stored_linear import StoredLinear
from octavo.loading.whole_file import write_whole

logger = logging.getLogger(__name__)

MAGIC = b"octavo weights\0\0"
VERSION = 1
_PREFIX = struct.Struct("<16sIQ16s")
_ALIGNMENT = 64

Names = tuple[str, ...]
"""The weights that one linear joins."""


def read_weights(path: Path, key: bytes) -> dict[Names, StoredLinear]:
    """The linears in ``path``, their tensors mapped: read from the disk when they are used. Empty if there is no file;
    with a line in the log that says why, if it was made of something else (``key``) or by another version, or cannot
    be read."""
    try:
        with path.open("rb") as file:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:  # ValueError: it is empty
        logger.warning("The weights in %s cannot be read (%s); packing them again", path, error)
        return {}
    header, reason = _read_header(memory, key)
    if header is None:
        logger.info("Packing the weights again: %s %s", path, reason)
        return {}
    if hasattr(mmap, "MADV_WILLNEED"):
        memory.madvise(mmap.MADV_WILLNEED)
    return {
        tuple(names): StoredLinear(description, tuple(_mapped(memory, *tensor) for tensor in tensors))
        for names, description, tensors in header["linears"]
    }


def _read_header(memory: mmap.mmap, key: bytes) -> tuple[dict[str, Any] | None, str]:
    """The header, or None and what is wrong with the file."""
    if len(memory) < _PREFIX.size:
        return None, "is cut short"
    magic, version, size, digest = _PREFIX.unpack_from(memory)
    if magic != MAGIC:
        return None, "is no file of packed weights"
    if version != VERSION:
        return None, f"has version {version}, and this Octavo reads version {VERSION}"
    text = memory[_PREFIX.size : _PREFIX.size + size]
    if _digest(text) != digest:
        return None, "is damaged"
    header: dict[str, Any] = json.loads(text)
    if header["key"] != key.hex():
        return None, "is of other files or settings"
    if header["size"] != len(memory):
        return None, "is cut short"
    return header, ""


def _mapped(memory: mmap.mmap, dtype: str, shape: Sequence[int], offset: int) -> Tensor:
    kind: torch.dtype = getattr(torch, dtype)
    count = 1
    for extent in shape:
        count *= extent
    return torch.frombuffer(memory, dtype=kind, count=count, offset=offset).view(*shape)


def write_weights(path: Path, key: bytes, linears: Mapping[Names, StoredLinear]) -> None:
    """Put the file in its place. Where the disk lacks room or refuses, there is a line in the log and no file."""
    entries, places, end = _lay_out(linears)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(path.parent).free < 2 * end:
            logger.warning("The packed weights are not kept: %s has less than %d MiB free", path.parent, 2 * end >> 20)
            return
        write_whole(path, lambda file: _write(file, entries, places, key, end))
    except OSError as error:
        logger.warning("The packed weights are not kept in %s: %s", path, error)
    else:
        logger.info("Packed weights are kept in %s (%d MiB)", path, end >> 20)


def _lay_out(linears: Mapping[Names, StoredLinear]) -> tuple[list[Any], list[tuple[int, Tensor]], int]:
    """The header's entries, each tensor with its place counted from the end of the header, and their end."""
    entries: list[Any] = []
    places: list[tuple[int, Tensor]] = []
    end = 0
    for names, stored in linears.items():
        tensors = []
        for tensor in stored.tensors:
            tensors.append([str(tensor.dtype).removeprefix("torch."), list(tensor.shape), end])
            places.append((end, tensor))
            end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        entries.append([list(names), dict(stored.description), tensors])
    return entries, places, end


def _write(file: IO[bytes], entries: list[Any], places: list[tuple[int, Tensor]], key: bytes, end: int) -> None:
    start, text = 0, b""
    while True:  # the header holds offsets, and its length moves them
        header = {
            "key": key.hex(),
            "size": start + end,
            "linears": [
                [names, description, [[dtype, shape, start + offset] for dtype, shape, offset in tensors]]
                for names, description, tensors in entries
            ],
        }
        text = json.dumps(header).encode()
        needed = -(-(_PREFIX.size + len(text)) // _ALIGNMENT) * _ALIGNMENT
        if needed == start:
            break
        start = needed
    file.write(_PREFIX.pack(MAGIC, VERSION, len(text), _digest(text)) + text)
    for offset, tensor in places:
        file.seek(start + offset)
        file.write(tensor.flatten().view(torch.uint8).numpy().data)
    file.truncate(start + end)


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()
