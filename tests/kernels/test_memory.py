"""KV memory: zeroed, costs nothing before it is used, and is no other process's."""

import mmap
from pathlib import Path

import pytest
import torch

from octavo.kernels.interface import allocate_kv


def _mapping_of(address: int) -> dict[str, str]:
    """The fields of the mapping that holds ``address``, as the kernel shows them, with its permissions."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        head = line.split()
        if "-" in head[0] and ":" not in head[0]:
            first, end = (int(bound, 16) for bound in head[0].split("-"))
            fields = {"permissions": head[1]}
            if first <= address < end:
                break
    for line in lines:
        name, _, value = line.partition(":")
        if "-" in name:
            break
        fields[name] = value.strip()
    return fields


def test_kv_memory_is_private_and_given_out_when_touched() -> None:
    kv = allocate_kv(num_blocks=4096, block_size=16, num_kv_heads=4, head_dim=64, dtype=torch.float32)
    mapping = _mapping_of(kv.keys.data_ptr() + kv.keys.nbytes // 2)
    assert mapping["permissions"] == "rw-p"
    assert int(mapping["Rss"].split()[0]) * 1024 < kv.keys.nbytes / 4
    assert not kv.keys[-1].any()
    assert kv.keys.data_ptr() % mmap.PAGESIZE == 0


def test_a_system_without_huge_pages_serves_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999)
    kv = allocate_kv(num_blocks=2, block_size=4, num_kv_heads=1, head_dim=8, dtype=torch.float32)
    assert kv.values.shape == (2, 1, 4, 8)
