"""Paged attention, KV copies, linears: one signature (``interface.Ops``), several back ends."""

from octavo.kernels.registry import select_ops

__all__ = ["select_ops"]
