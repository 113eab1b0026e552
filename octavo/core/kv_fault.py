"""Faults of the KV memory that the sanitizer (or the pool itself) finds: each is a bug in Octavo."""

from enum import Enum


class KVFault(Enum):
    """What went wrong."""

    DOUBLE_FREE = "double free"
    """A reference was given back that nobody had."""
    LOST_REFERENCE = "lost reference"
    """A table names a block for which the pool counts fewer references than tables that name it."""
    WRONG_TABLE = "wrong table entry"
    """A table as the runner knows it is not the sequence's, has a gap, or names no block at all."""
    PREMATURE_REUSE = "premature reuse"
    """A block was given out while another sequence still had it."""
    SHARED_WRITE = "write to a shared block"
    """A sequence writes into a block that others read too: it should have been copied first."""
    STALE_HASH = "stale hash"
    """The prefix cache knows a block by a name that its contents do not have."""
    MISSING_CONTENTS = "missing contents"
    """A sequence reads slots, or a move reads a block, that hold nothing: dropped, or never written."""
    WRONG_CONTENTS = "wrong contents"
    """A sequence reads other tokens, or other positions, than its own."""
    POSITION_GAP = "gap in the positions"
    """A sequence goes on at another position than the one after its last."""


class KVFaultError(AssertionError):
    """The KV memory is not what it should be: a fault in Octavo, after which no answer can be trusted."""

    def __init__(self, fault: KVFault, what: str) -> None:
        super().__init__(f"KV memory fault, {fault.value}: {what}")
        self.fault = fault
