"""When a sequence's blocks enter the prefix cache: those of its prompt as they land, so that others can use them at
once; those of its output when it gives its blocks up, so that a step owes nothing to sequences that merely decode."""

from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import FilledBlocks
from octavo.core.prefix_wait import PrefixWaits
from octavo.core.request import NEVER, Request
from octavo.core.step import TableWrite


class Publisher:
    """Names what has landed, and lets those who waited for it get in line. ``table_writes``: see
    ``KVCacheManager.publish``; to be told to the runner."""

    def __init__(self, kv: KVCacheManager, prefix_waits: PrefixWaits) -> None:
        self.table_writes: list[TableWrite] = []
        self._kv = kv
        self._prefix_waits = prefix_waits

    def publish_prompt(self, request: Request, reader: int | None) -> None:
        """A step with a part of what the request had when it was admitted has landed. ``reader``: the last step in
        flight that may read the request's blocks."""
        if request.prompt_end == NEVER:
            return
        assert request.tables is not None
        landed = request.num_landed_tokens
        if landed >= request.next_publish:
            self._publish_full(request, landed, reader)
        if request.pin_claim is not None:
            self._kv.keeping.pins.settle(request.pin_claim, landed)
        if landed >= request.prompt_end:
            self._kv.publish_tail(request.tables, request.chain, request.token_ids, request.prompt_end)
            self._prefix_waits.finish(request)
            request.prompt_end, request.tail_hash = NEVER, None

    def publish_rest(self, request: Request) -> None:
        """The request gives its blocks up, and no step computes it: all that has landed is left to others, the last
        block as far as it is filled."""
        if request.next_publish == NEVER:
            return
        assert request.tables is not None
        self.publish_full(request)
        landed = min(request.num_landed_tokens, request.num_tokens)
        self._kv.publish_tail(request.tables, request.chain, request.token_ids, landed)

    def publish_full(self, request: Request) -> None:
        """Full blocks of a request that no step computes, and whose row is given up: the runner is not told."""
        landed = min(request.num_landed_tokens, request.num_tokens)
        if landed >= request.next_publish:
            self._publish_full(request, landed, None)
            # The runner may know the row no more, or not yet.
            self.table_writes = [write for write in self.table_writes if write.row_id != request.row_id]

    def _publish_full(self, request: Request, landed: int, reader: int | None) -> None:
        tables, chain, token_ids, size = request.tables, request.chain, request.token_ids, self._kv.config.block_size
        assert tables is not None
        if len(chain.hashes) < landed // size:
            self._kv.hasher.extend(chain, token_ids, landed)
        first, end = request.next_publish // size - 1, landed // size
        hashes = chain.hashes[first:end]
        filled = FilledBlocks(first, hashes, chain.parents[first:end], chain.blocks[first:end])
        self.table_writes += self._kv.publish(tables, filled, reader)
        if first <= chain.salted_at < end:
            at = chain.salted_at
            self._kv.open_head(chain, at, chain.blocks[at], chain.hashes[at])
        request.next_publish = (end + 1) * size
        self._prefix_waits.settle(hashes)
