"""``KVLayer`` and ``BatchLayout`` as the native library reads them: ``native.Batch``."""

from collections.abc import Sequence

import torch

from octavo.core.errors import ConfigurationError
from octavo.kernels import native
from octavo.kernels.interface import BatchLayout, KVLayer

_KV_TYPES = {torch.float32: 0, torch.float16: 1, torch.int8: 2}
"""OctavoKvType."""
_LAYOUT_TYPES = (torch.int32, torch.int64, torch.int32, torch.int32)

LAYOUT_FIELDS = (
    *("positions", "slots", "query_starts", "block_tables"),
    *("num_rows", "num_sequences", "table_width", "table_pitch"),
)
"""The fields that ``layout_values`` has values for, in its order and side by side, each of 8 bytes; ``set_kv`` fills in
the others."""


def native_batch(kv: KVLayer, layout: BatchLayout) -> native.Batch:
    """Valid as long as the tensors are.

    Raises:
        ConfigurationError: the native kernels do not know the type of the KV memory.
        TypeError: the layout's tensors have other types than the contract says.
    """
    batch = native.Batch()
    set_kv(batch, kv)
    for name, value in zip(LAYOUT_FIELDS, layout_values(layout), strict=True):
        setattr(batch, name, value)
    return batch


def set_kv(batch: native.Batch, kv: KVLayer) -> None:
    """Fill in the KV memory; raises as ``native_batch``."""
    kv_type = _KV_TYPES.get(kv.keys.dtype)
    if kv_type is None or (kv.keys.dtype == torch.int8) != (kv.key_scales is not None):
        raise ConfigurationError(
            f"The native CPU kernels hold KV in float32, float16, or in int8 with scales, not {kv.keys.dtype}."
        )
    batch.kv_type = kv_type
    batch.keys = kv.keys.data_ptr()
    batch.values = kv.values.data_ptr()
    batch.key_scales = None if kv.key_scales is None else kv.key_scales.data_ptr()
    batch.value_scales = None if kv.value_scales is None else kv.value_scales.data_ptr()


def layout_values(layout: BatchLayout) -> Sequence[int]:
    """One value for each of ``LAYOUT_FIELDS``; raises as ``native_batch``."""
    tables = layout.block_tables
    types = (layout.positions.dtype, layout.slots.dtype, layout.query_starts.dtype, tables.dtype)
    if types != _LAYOUT_TYPES:
        raise TypeError(f"A batch layout holds {_LAYOUT_TYPES} (docs/kernel-contract.md), not {types}.")
    return (
        layout.positions.data_ptr(),
        layout.slots.data_ptr(),
        layout.query_starts.data_ptr(),
        tables.data_ptr(),
        layout.num_rows,
        layout.context_lens.shape[0],
        tables.shape[1],
        tables.stride(0),
    )
