"""Traffic replayed through the engine's own scheduler and allocator under a virtual clock (docs/simulator.md)."""
