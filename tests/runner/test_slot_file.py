"""The file of the disk tier: what is in it after a restart, whatever happened to it, and who may open it."""

import errno
import gc
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.core.disk_tier import StoredBlock
from octavo.core.errors import ConfigurationError
from octavo.runner.slot_file import FILE_NAME, HEADER_BYTES, PAGE_BYTES, VERSION, Contents, SlotFile, open_slot_file

CONTENTS = Contents(block_bytes=5000, fingerprint=b"f" * 16)
NAMES = [b"%016d" % number for number in range(8)]
FOUR_SLOTS = PAGE_BYTES + 4 * CONTENTS.slot_bytes


def opened(folder: Path, max_bytes: int = FOUR_SLOTS, contents: Contents = CONTENTS) -> SlotFile:
    file = open_slot_file(folder, max_bytes, contents)
    assert file is not None
    return file


def fill(file: SlotFile, slot: int, name: bytes, age_rank: int = 0) -> None:
    file.erase(slot)
    first = file.first_byte(slot)
    file.memory[first : first + CONTENTS.block_bytes] = bytes([slot + 1]) * CONTENTS.block_bytes
    file.seal(slot, name, age_rank)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A folder with a file whose slots 0, 1 and 3 are filled."""
    file = opened(tmp_path)
    for slot, name in ((0, NAMES[0]), (1, NAMES[1]), (3, NAMES[2] + b"\x01")):
        fill(file, slot, name, age_rank=10 - slot)
    file.close()
    return tmp_path


def test_blocks_are_there_after_a_restart(filled: Path) -> None:
    file = opened(filled)
    assert list(file.stored()) == [
        StoredBlock(0, NAMES[0], 10),
        StoredBlock(1, NAMES[1], 9),
        StoredBlock(3, NAMES[2] + b"\x01", 7),
    ]
    assert all(file.holds(slot, name) for slot, name, _ in file.stored())
    assert not file.holds(0, NAMES[1])
    assert not file.holds(2, NAMES[0])
    assert file.memory[file.first_byte(1) : file.first_byte(1) + 5000] == b"\x02" * 5000
    file.rank(1, 77)
    file.rank(2, 78)
    file.erase(3)
    file.close()
    assert list(opened(filled).stored()) == [StoredBlock(0, NAMES[0], 10), StoredBlock(1, NAMES[1], 77)]


@pytest.mark.parametrize("max_bytes", [FOUR_SLOTS, FOUR_SLOTS + CONTENTS.slot_bytes - 1])
def test_the_file_is_allocated_bounded_and_private(tmp_path: Path, max_bytes: int) -> None:
    file = opened(tmp_path / "made" / "on the way", max_bytes)
    assert file.num_slots == 4
    status = (tmp_path / "made" / "on the way" / FILE_NAME).stat()
    assert status.st_size == FOUR_SLOTS <= max_bytes
    assert status.st_blocks * 512 >= FOUR_SLOTS
    assert stat.S_IMODE(status.st_mode) == 0o600


def test_a_write_that_was_broken_off_leaves_no_block(filled: Path) -> None:
    file = opened(filled)
    file.erase(1)
    file.memory[file.first_byte(1) : file.first_byte(1) + 2000] = b"x" * 2000
    file.close()
    assert [block.slot for block in opened(filled).stored()] == [0, 3]


@pytest.mark.parametrize("offset", [0, 1999, 4999])
def test_a_changed_byte_is_noticed(filled: Path, offset: int) -> None:
    """As where a header reached the disk, and what it speaks of did not."""
    file = opened(filled)
    file.memory[file.first_byte(1) + offset] ^= 1
    assert not file.holds(1, NAMES[1])
    assert file.holds(0, NAMES[0])


@pytest.mark.parametrize("offset", range(60))
def test_a_torn_header_is_no_block(filled: Path, offset: int) -> None:
    file = opened(filled)
    file.memory[file.first_byte(1) - HEADER_BYTES + offset] ^= 0xFF
    assert [block.slot for block in file.stored()] == [0, 3]
    file.rank(1, 5)
    assert not file.holds(1, NAMES[1]), "a rank does not make it whole"


@pytest.mark.parametrize("version", [0, VERSION + 1])
def test_another_version_is_discarded_by_name(filled: Path, version: int, caplog: pytest.LogCaptureFixture) -> None:
    _overwrite(filled / FILE_NAME, 8, version.to_bytes(4, "little"))
    file = opened(filled)
    assert list(file.stored()) == []
    (record,) = caplog.records
    assert f"has version {version}, this Octavo reads version {VERSION}" in record.getMessage()
    fill(file, 0, NAMES[0])
    file.close()
    assert len(list(opened(filled).stored())) == 1
    assert len(caplog.records) == 1


@pytest.mark.parametrize("contents", [Contents(5000, b"g" * 16), Contents(4800, b"f" * 16)])
def test_other_contents_are_discarded(filled: Path, contents: Contents, caplog: pytest.LogCaptureFixture) -> None:
    assert list(opened(filled, contents=contents).stored()) == []
    (record,) = caplog.records
    assert "is of another model" in record.getMessage()


@pytest.mark.parametrize("text", [b"some notes of mine", b"x" * 9000])
def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(text)
    with pytest.raises(ConfigurationError, match=r"is not a prefix cache of Octavo's; move it away or give another"):
        opened(tmp_path)
    assert path.read_bytes() == text


@pytest.mark.parametrize("size", [0, 10, FOUR_SLOTS])
def test_a_file_that_was_never_finished_is_made_anew(tmp_path: Path, size: int) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(bytes(size))
    assert opened(tmp_path).num_slots == 4


def test_more_and_less_space_keep_the_slots_that_fit(filled: Path) -> None:
    larger = opened(filled, FOUR_SLOTS + 3 * CONTENTS.slot_bytes)
    assert larger.num_slots == 7
    assert [block.slot for block in larger.stored()] == [0, 1, 3]
    larger.close()
    smaller = opened(filled, FOUR_SLOTS - 2 * CONTENTS.slot_bytes)
    assert [block.slot for block in smaller.stored()] == [0, 1]
    assert (filled / FILE_NAME).stat().st_size == FOUR_SLOTS - 2 * CONTENTS.slot_bytes
    smaller.close()
    assert [block.slot for block in opened(filled).stored()] == [0, 1], "what was cut off does not come back"


def test_a_second_one_is_refused_until_the_first_is_done(filled: Path) -> None:
    first = opened(filled)
    with pytest.raises(
        ConfigurationError, match=r"is in use by another Octavo; give each a prefix_cache_dir of its own"
    ):
        opened(filled)
    first.close()
    second = opened(filled)
    del second
    gc.collect()
    assert len(list(opened(filled).stored())) == 3


def test_a_process_that_was_killed_leaves_no_lock(tmp_path: Path) -> None:
    """And of what it was writing, nothing but whole blocks."""
    script = f"""
import os, signal
from pathlib import Path
from tests.runner.test_slot_file import *
file = opened(Path({str(tmp_path)!r}))
fill(file, 0, NAMES[0])
file.erase(1)
file.memory[file.first_byte(1)] = 7
os.kill(os.getpid(), signal.SIGKILL)
"""
    process = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], check=False)
    assert process.returncode == -9
    file = opened(tmp_path)
    assert [block.slot for block in file.stored()] == [0]
    assert file.holds(0, NAMES[0])


def test_too_little_space_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"prefix_cache_disk_space of 8,192 bytes holds not one block"):
        open_slot_file(tmp_path, 8192, CONTENTS)


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("long" * 100)):
        with pytest.raises(ConfigurationError, match=r"cannot be kept in .*; give another prefix_cache_dir"):
            open_slot_file(folder, FOUR_SLOTS, CONTENTS)


def test_a_disk_without_room_turns_the_tier_off(filled: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Found before anything is taken; what was there stays."""
    too_much = shutil.disk_usage(filled).free + 2**40
    assert open_slot_file(filled, too_much, CONTENTS) is None
    (record,) = caplog.records
    assert "The prefix cache is not kept on disk" in record.getMessage()
    assert "No space left on device" in record.getMessage()
    assert (filled / FILE_NAME).stat().st_size == FOUR_SLOTS
    assert len(list(opened(filled).stored())) == 3


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_meanwhile_turns_the_tier_off(
    filled: Path, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def allocate(descriptor: int, offset: int, length: int) -> None:
        os.ftruncate(descriptor, length - 1)  # some of it was to be had
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    assert open_slot_file(filled, 2 * FOUR_SLOTS, CONTENTS) is None
    assert os.strerror(number) in caplog.text
    assert (filled / FILE_NAME).stat().st_size == FOUR_SLOTS


def _overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
