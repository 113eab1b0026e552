"""What attention reads in measurements of it: layers that are in memory, and batches of decoding rows."""

import torch
from torch import Tensor

from octavo.kernels.interface import AttentionSpec, BatchLayout, KVLayer, allocate_kv


def written_layers(
    count: int, num_blocks: int, block_size: int, spec: AttentionSpec, dtype: torch.dtype
) -> list[KVLayer]:
    """``count`` layers of keys and values, all ones: memory that was never written is one page of zeros, which the
    cache holds."""
    layers = [allocate_kv(num_blocks, block_size, spec.num_kv_heads, spec.head_dim, dtype) for _ in range(count)]
    for tensor in (tensor for layer in layers for tensor in layer.tensors):
        tensor.fill_(1)
    return layers


def decoding_batch(num_sequences: int, context: int, block_size: int, tables: Tensor) -> BatchLayout:
    """One decode row a sequence. ``tables``: one sequence after another, [num_sequences * context / block_size]."""
    tables = tables.int().view(num_sequences, -1)
    return BatchLayout(
        positions=torch.full((num_sequences,), context - 1, dtype=torch.int32),
        slots=tables[:, -1].long() * block_size + block_size - 1,
        query_starts=torch.arange(num_sequences + 1, dtype=torch.int32),
        context_lens=torch.full((num_sequences,), context, dtype=torch.int32),
        block_tables=tables,
    )
