"""Pure bookkeeping: requests, blocks, tables, the prefix cache and the scheduler. Standard library only."""
