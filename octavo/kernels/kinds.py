"""Kinds that models and settings name, in plain values: to read them costs no import of torch."""

from typing import Literal

Activation = Literal["silu", "gelu_tanh"]
"""gelu_tanh is the tanh approximation; both act on the gate half."""

KV_ITEM_BYTES = {"float32": 4, "float16": 2, "int8": 1}
"""Types of the KV memory by torch's name, and the bytes of a number in them."""

SCALE_BYTES = 4
"""Of the fp32 scale that int8 has for each token and KV head."""


def kv_head_bytes(head_dim: int, dtype: str) -> int:
    """Bytes of one token's key (or value) of one KV head in ``dtype``, a key of ``KV_ITEM_BYTES``."""
    return head_dim * KV_ITEM_BYTES[dtype] + (SCALE_BYTES if dtype == "int8" else 0)
