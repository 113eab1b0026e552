"""Blocks between the pool and the host pool: bit for bit, each to its place, in any order."""

import pytest
import torch
from torch import Tensor

from octavo.core.step import BlockCopy
from octavo.kernels.interface import SCALE_DTYPE, KVLayer
from octavo.runner.swapping import copy_between, seconds_per_block

NUM_LAYERS, HEADS, HEAD_DIM, BLOCK_SIZE = 3, 2, 8, 4
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])


def _memory(num_blocks: int, dtype: torch.dtype, seed: int) -> list[KVLayer]:
    """Layers full of random bits: NaNs of every kind are among the floats."""
    generator = torch.Generator().manual_seed(seed)

    def bits(kind: torch.dtype, *shape: int) -> Tensor:
        size = torch.Size(shape).numel() * kind.itemsize
        return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator).view(kind).view(shape)

    layers = []
    for _ in range(NUM_LAYERS):
        scales = [bits(SCALE_DTYPE, num_blocks, HEADS, BLOCK_SIZE) for _ in range(2 if dtype == torch.int8 else 0)]
        keys = bits(dtype, num_blocks, HEADS, HEAD_DIM, BLOCK_SIZE)
        values = bits(dtype, num_blocks, HEADS, BLOCK_SIZE, HEAD_DIM)
        layers.append(KVLayer(keys, values, *scales))
    return layers


def _bytes(memory: list[KVLayer], block_id: int) -> list[bytes]:
    """All that a block holds, tensor by tensor."""
    return [
        tensor[block_id].contiguous().view(torch.uint8).numpy().tobytes()
        for layer in memory
        for tensor in layer.tensors
    ]


@DTYPES
def test_a_round_trip_changes_no_bit(dtype: torch.dtype) -> None:
    """Five blocks of nine go out to places of their own and come back to yet others; no other block is touched."""
    device, host = _memory(9, dtype, seed=1), _memory(6, dtype, seed=2)
    assert len(_bytes(device, 0)) == NUM_LAYERS * (4 if dtype == torch.int8 else 2)
    before, host_before = [_bytes(device, block) for block in range(9)], [_bytes(host, block) for block in range(6)]
    away, there, back = [7, 0, 3, 8, 1], [2, 5, 0, 1, 3], [1, 7, 8, 4, 0]
    copy_between(device, host, list(map(BlockCopy, away, there)))
    assert [_bytes(device, block) for block in range(9)] == before
    assert [_bytes(host, block) for block in there] == [before[block] for block in away]
    assert _bytes(host, 4) == host_before[4]
    copy_between(host, device, list(map(BlockCopy, there, back)))
    assert [_bytes(device, block) for block in back] == [before[block] for block in away]
    for block in set(range(9)) - set(back):
        assert _bytes(device, block) == before[block]


@DTYPES
def test_of_two_copies_to_one_block_the_later_counts(dtype: torch.dtype) -> None:
    device, host = _memory(4, dtype, seed=1), _memory(3, dtype, seed=2)
    copies = [BlockCopy(0, 1), BlockCopy(1, 2), BlockCopy(2, 1), BlockCopy(2, 0)]
    copy_between(device, host, copies)
    assert [_bytes(host, block) for block in range(3)] == [_bytes(device, block) for block in (2, 2, 1)]


@DTYPES
def test_a_copy_takes_time(dtype: torch.dtype) -> None:
    seconds = seconds_per_block(_memory(2, dtype, seed=1), _memory(2, dtype, seed=2))
    assert 0 < seconds < 1
