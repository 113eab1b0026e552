"""Recency rules until another order has proved itself, and again when it does so no more."""

from collections.abc import Iterator
from itertools import count

from octavo.core.eviction_trial import Trial
from octavo.core.evictor import LRUEvictor
from octavo.core.name_cache import NameCache

NUM_BLOCKS = 200


def chain(number: int, length: int = 8) -> list[bytes]:
    return [(number << 8 | block).to_bytes(8, "little") for block in range(length)]


def regulars(fresh: Iterator[int]) -> Iterator[list[bytes]]:
    """Ten prompts that return in turn, each after more that come once than the cache holds."""
    for turn in range(100):
        yield chain(1_000_000 + turn % 10)
        yield from (chain(next(fresh)) for _ in range(4))


def recents(fresh: Iterator[int]) -> Iterator[list[bytes]]:
    """Prompts that come twice, soon one after the other, and never again."""
    for _ in range(200):
        prompts = [chain(next(fresh)) for _ in range(5)]
        yield from prompts
        yield from prompts


def test_it_is_won_by_who_hits_more_and_lost_again() -> None:
    trial, fresh = Trial(NUM_BLOCKS), count()
    for names in recents(fresh):
        trial.release(names, NUM_BLOCKS)
        assert not trial.is_won, "both hit the same"
    verdicts = []
    for names in regulars(fresh):
        trial.release(names, NUM_BLOCKS)
        verdicts.append(trial.is_won)
    assert verdicts == sorted(verdicts)
    assert verdicts[-1]
    for names in recents(fresh):
        trial.release(names, NUM_BLOCKS)
    assert not trial.is_won, "what was proved long ago proves nothing now"


def test_one_lucky_chain_proves_nothing() -> None:
    trial = Trial(NUM_BLOCKS)
    for names in (chain(1, 100), chain(1, 100), chain(2, 150), chain(1, 100)):
        trial.release(names, NUM_BLOCKS)
        assert not trial.is_won


def test_a_name_cache_holds_what_it_may() -> None:
    cache = NameCache(8, LRUEvictor)
    assert cache.serve([b"a", b"b", b"c"], 8) == 0
    assert cache.serve([b"a", b"b", b"c"], 8) == 3
    assert cache.serve([b"d", b"e"], 3) == 0  # room for one of the first three beside them
    assert cache.serve([b"a", b"b", b"c"], 8) == 1


def test_what_follows_a_missing_block_is_no_hit() -> None:
    cache = NameCache(8, LRUEvictor)
    assert cache.serve([b"c"], 8) == 0  # the end of a chain whose head others still use
    assert cache.serve([b"a", b"b", b"c"], 8) == 0
    assert cache.serve([b"a", b"b", b"c"], 8) == 3
