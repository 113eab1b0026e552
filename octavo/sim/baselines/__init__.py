"""What serving engines did before paged memory, as schedulers that the same loop drives (docs/paper.md)."""
