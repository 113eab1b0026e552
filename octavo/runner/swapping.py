"""Blocks on their way between the pool and the host pool: in batches, block by block, never as one long buffer."""

import time
from collections.abc import Sequence

import torch

from octavo.core.step import BlockCopy
from octavo.kernels.interface import KVLayer

NUM_TIMED_COPIES = 10


def copy_between(source: Sequence[KVLayer], target: Sequence[KVLayer], copies: Sequence[BlockCopy]) -> None:
    """Copy blocks of one memory to blocks of another, in every layer; where two go to one block, the later one counts.

    ``source``, ``target``: one ``KVLayer`` a slot, of the same kind.
    """
    by_target = {copy.target: copy.source for copy in copies}
    sources, targets = torch.tensor(list(by_target.values())), torch.tensor(list(by_target))
    for layer, other in zip(source, target, strict=True):
        for held, copied in zip(layer.tensors, other.tensors, strict=True):
            copied.index_copy_(0, targets, held.index_select(0, sources))


def seconds_per_block(source: Sequence[KVLayer], target: Sequence[KVLayer]) -> float:
    """How long a copy of one block takes, measured on block 0, whose contents mean nothing yet, in one slot: to touch
    all of them would make the system find and zero hundreds of megabytes of huge pages while somebody waits."""
    first, copies = (source[:1], target[:1]), [BlockCopy(0, 0)]
    copy_between(*first, copies)  # the first touch makes the memory real
    start = time.perf_counter()
    for _ in range(NUM_TIMED_COPIES):
        copy_between(*first, copies)
    return len(source) * (time.perf_counter() - start) / NUM_TIMED_COPIES
