"""The file of the disk tier: slots of one block each, mapped into memory, safe against a torn write.

A page with ``_FileHeader`` comes first; then the slots, each of whole pages: a header of ``HEADER_BYTES``, the block's
bytes, and nothing. Numbers are little-endian. A slot's header is erased before its bytes change and written after
them, and it has a checksum of itself and one of its bytes and their name: what was half written, in whatever order the
system brought it to disk, is not taken for a block.
"""

import errno
import fcntl
import logging
import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from octavo.core.disk_tier import StoredBlock
from octavo.core.errors import ConfigurationError

logger = logging.getLogger(__name__)

FILE_NAME = "prefix-cache.octavo"
MAGIC = b"OctavoKV"
VERSION = 1
PAGE_BYTES = 4096
HEADER_BYTES = 64
"""Of a slot."""
CHECKSUM_BYTES = 16

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FILE_HEADER = struct.Struct("<8sIQ16s")
_SLOT_HEADER = struct.Struct("<B31sQ16s")  # length of the name, name, age rank, checksum of the block; then its CRC-32
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Contents:
    """What the slots of a file are: ``block_bytes`` each, of keys and values that ``fingerprint`` (16 bytes) stands for
    (see BlockHasher)."""

    block_bytes: int
    fingerprint: bytes

    @property
    def slot_bytes(self) -> int:
        return -(-(HEADER_BYTES + self.block_bytes) // PAGE_BYTES) * PAGE_BYTES


class _SlotHeader(NamedTuple):
    name: bytes
    age_rank: int
    checksum: bytes

    def pack(self) -> bytes:
        fields = _SLOT_HEADER.pack(len(self.name), self.name, self.age_rank, self.checksum)
        return fields + _CRC.pack(zlib.crc32(fields))

    @staticmethod
    def unpack(data: bytes) -> "_SlotHeader | None":
        """None: there is no block in this slot."""
        fields = data[: _SLOT_HEADER.size]
        length, name, age_rank, checksum = _SLOT_HEADER.unpack(fields)
        is_whole = _CRC.unpack_from(data, _SLOT_HEADER.size) == (zlib.crc32(fields),)
        return _SlotHeader(name[:length], age_rank, checksum) if is_whole and length else None


class SlotFile:
    """The slots; one process at a time has the file open. Made by ``open_slot_file``."""

    def __init__(self, descriptor: int, num_slots: int, contents: Contents) -> None:
        self.num_slots = num_slots
        # The map keeps a duplicate of the descriptor, and with it the lock.
        self.memory = mmap.mmap(descriptor, PAGE_BYTES + num_slots * contents.slot_bytes)
        self._contents = contents

    def first_byte(self, slot: int) -> int:
        """Where in ``memory`` the block of a slot begins; a multiple of 64."""
        return PAGE_BYTES + slot * self._contents.slot_bytes + HEADER_BYTES

    def stored(self) -> Iterator[StoredBlock]:
        """The blocks that are there, going by their headers; their bytes are looked at when they are read."""
        for slot in range(self.num_slots):
            if header := self._header(slot):
                yield StoredBlock(slot, header.name, header.age_rank)

    def erase(self, slot: int) -> None:
        """From now on there is no block in this slot."""
        self._write_header(slot, bytes(HEADER_BYTES))

    def seal(self, slot: int, name: bytes, age_rank: int) -> None:
        """The bytes of an erased slot have been written: now it holds the block ``name``."""
        self._write_header(slot, _SlotHeader(name, age_rank, self._checksum(slot, name)).pack())

    def rank(self, slot: int, age_rank: int) -> None:
        """Note when a block was used, if there is one."""
        if header := self._header(slot):
            self._write_header(slot, header._replace(age_rank=age_rank).pack())

    def holds(self, slot: int, name: bytes) -> bool:
        """Is the block ``name`` in this slot, every byte of it?"""
        header = self._header(slot)
        return header is not None and header.name == name and header.checksum == self._checksum(slot, name)

    def close(self) -> None:
        """Another process may open the file. Bytes on their way to the disk are left to the system."""
        self.memory.close()

    def _header(self, slot: int) -> _SlotHeader | None:
        first = self.first_byte(slot) - HEADER_BYTES
        return _SlotHeader.unpack(self.memory[first : first + HEADER_BYTES])

    def _write_header(self, slot: int, data: bytes) -> None:
        first = self.first_byte(slot) - HEADER_BYTES
        self.memory[first : first + len(data)] = data

    def _checksum(self, slot: int, name: bytes) -> bytes:
        digest = blake2b(name, digest_size=CHECKSUM_BYTES)
        first = self.first_byte(slot)
        with memoryview(self.memory) as memory, memory[first : first + self._contents.block_bytes] as block:
            digest.update(block)
        return digest.digest()


def open_slot_file(folder: Path, max_bytes: int, contents: Contents) -> SlotFile | None:
    """Open the file in ``folder``, both made if need be, with as many slots as ``max_bytes`` hold, all of them
    allocated on the disk. What other models, settings or versions left is discarded. None, with a warning, if the disk
    is full.

    Raises:
        ConfigurationError: the folder cannot be used, another process uses the file, it is no such file, or not one
            slot fits.
    """
    num_slots = (max_bytes - PAGE_BYTES) // contents.slot_bytes
    if num_slots < 1:
        raise ConfigurationError(
            f"prefix_cache_disk_space of {max_bytes:,} bytes holds not one block, which takes "
            f"{PAGE_BYTES + contents.slot_bytes:,}; give it more"
        )
    path = folder / FILE_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # For the owner alone: keys and values tell what was in the prompts.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(descriptor, path)
            _prepare(descriptor, path, PAGE_BYTES + num_slots * contents.slot_bytes, contents)
            return SlotFile(descriptor, num_slots, contents)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in _FULL:
            logger.warning(
                "The prefix cache is not kept on disk: %s does not get the %.2f GiB it needs (%s).",
                *(path, num_slots * contents.slot_bytes / 2**30, error.strerror),
            )
            return None
        raise ConfigurationError(
            f"the prefix cache cannot be kept in {folder}: {error.strerror}; give another prefix_cache_dir"
        ) from error


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigurationError(
            f"{path} is in use by another Octavo; give each a prefix_cache_dir of its own"
        ) from None


def _prepare(descriptor: int, path: Path, num_bytes: int, contents: Contents) -> None:
    """Make the file one of ``num_bytes`` with the right header, keeping those slots of it that can be used."""
    header = _FILE_HEADER.pack(MAGIC, VERSION, contents.block_bytes, contents.fingerprint)
    found = os.pread(descriptor, _FILE_HEADER.size, 0)
    if found != header:
        _tell_discarded(found, path)
        os.ftruncate(descriptor, 0)
    size = os.fstat(descriptor).st_size
    try:
        _allocate(descriptor, num_bytes)
    except OSError:
        os.ftruncate(descriptor, size)
        raise
    os.ftruncate(descriptor, num_bytes)
    if found != header:
        os.pwrite(descriptor, header, 0)  # the last thing: a file without it is made anew


def _tell_discarded(found: bytes, path: Path) -> None:
    """Say why what is in a file will be discarded, if there is anything.

    Raises:
        ConfigurationError: it is somebody else's.
    """
    if not any(found):
        return
    if len(found) < _FILE_HEADER.size or not found.startswith(MAGIC):
        raise ConfigurationError(
            f"{path} is not a prefix cache of Octavo's; move it away or give another prefix_cache_dir"
        )
    version = _FILE_HEADER.unpack(found)[1]
    if version != VERSION:
        logger.warning("Discarding %s: it has version %d, this Octavo reads version %d.", path, version, VERSION)
    else:
        logger.warning("Discarding %s: it is of another model, of other settings or of another back end.", path)


def _allocate(descriptor: int, num_bytes: int) -> None:
    """Give the file its place on the disk now: a write to a map that finds none later would end the process."""
    missing = num_bytes - os.fstat(descriptor).st_blocks * 512
    space = os.fstatvfs(descriptor)
    if missing > space.f_bavail * space.f_frsize:  # told without filling the disk first
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.posix_fallocate(descriptor, 0, num_bytes)
