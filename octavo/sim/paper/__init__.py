"""The figures of "Efficient Memory Management for Large Language Model Serving with PagedAttention" (Kwon et al., SOSP
2023), redone with the real scheduler and with what it was compared with (docs/paper.md)."""
