"""Paged attention, KV copies, linears: one signature (``interface.Ops``), several back ends (``registry``)."""
