"""A byte a block: how often it is referred to, whether others can find it, whether it is pinned alone."""

from octavo.core.block_map import MOST_REFERENCES, ONLY_PINNED, block_map
from octavo.core.pool import BlockPool


def test_what_a_byte_says() -> None:
    pool = BlockPool(6)
    _private, shared, cached, pinned, used = pool.allocate(5)
    pool.acquire([shared])
    pool.publish([shared, cached, pinned, used], [b"s", b"c", b"p", b"u"])
    pool.release([cached])
    pool.acquire([used])
    shown = block_map(pool, {pinned: 1, used: 1})
    assert len(shown) == 6
    assert [byte >> 1 for byte in shown] == [1, 2, 0, ONLY_PINNED, 1, 0]
    assert [byte & 1 for byte in shown] == [0, 1, 1, 1, 1, 0]


def test_more_references_than_it_can_tell() -> None:
    pool = BlockPool(3)
    pool.allocate(2)
    for _ in range(300):
        pool.acquire([0])
    assert [byte >> 1 for byte in block_map(pool, {})] == [MOST_REFERENCES, 1, 0]
