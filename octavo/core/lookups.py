"""What of a waiting request is there already, and what of it another is computing."""

from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import PrefixHit
from octavo.core.prefix_wait import PrefixWaits
from octavo.core.request import Request


class Lookups:
    """Looks into the prefix cache and into the blocks that running requests will publish. Changes neither."""

    def __init__(self, kv: KVCacheManager, prefix_waits: PrefixWaits) -> None:
        self._kv = kv
        self._prefix_waits = prefix_waits

    def find(self, request: Request) -> PrefixHit:
        """What is cached of it, or swapped out."""
        if self._kv.config.enable_prefix_caching:
            self._kv.hasher.extend(request.chain, request.token_ids, request.num_tokens)
        reads = request.chain if self._reads_cache(request) else None
        return self._kv.lookup_prefix(reads, request.token_ids, request.swapped)

    def may_find(self, request: Request, num_tokens: int) -> bool:
        """Can ``find`` say that so many tokens are there? One look, where that takes many; False is certain."""
        if request.swapped is not None or not self._reads_cache(request):
            return request.swapped is not None
        if not request.chain.hashes:
            self._kv.hasher.extend(request.chain, request.token_ids, request.num_tokens)
        return self._kv.may_reach(request.chain, num_tokens)

    def num_taken(self, request: Request) -> int:
        """Blocks that would be free no more if it came in now."""
        return self._kv.num_taken(self.find(request), request.num_tokens)

    def block_in_work(self, request: Request, hit: PrefixHit, step_id: int) -> bytes | None:
        """Hash of a block that another is computing and that would bring the request further than its hit: the very
        next one, or one that shares more of its leading tokens."""
        prefix_waits, size = self._prefix_waits, self._kv.config.block_size
        if not self._reads_cache(request) or not prefix_waits.may_wait(request, step_id):
            return None
        index, num_tail_tokens = divmod(hit.num_tokens, size)
        hashes = request.chain.hashes[: (request.num_tokens - 1) // size]
        if prefix_waits.is_awaited(hashes[index : index + 1]):
            return hashes[index]
        match = prefix_waits.nearest(request, index, size)
        gain = match.num_tokens - num_tail_tokens if match else 0
        # A few tokens that all prompts begin with are not worth a step.
        return match.block_hash if match and gain >= (1 if index else max(1, size // 4)) else None

    def _reads_cache(self, request: Request) -> bool:
        return self._kv.config.enable_prefix_caching and request.may_read_cache
