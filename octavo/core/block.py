"""One block: the unit in which KV memory is given out, shared and taken back."""


class Block:
    """Bookkeeping of one physical block of the pool.

    ``ref_count`` counts occurrences in block tables plus holds. A block whose contents may be found by others carries
    the chained ``hash`` of its tokens and the layer ``group`` whose keys and values it holds; a block without a hash
    has contents that only its own table knows.
    """

    __slots__ = ("block_id", "group", "hash", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.hash: bytes | None = None
        self.group = 0

    def __repr__(self) -> str:
        name = self.hash.hex()[:8] if self.hash else None
        return f"Block({self.block_id}, ref_count={self.ref_count}, group={self.group}, hash={name})"
