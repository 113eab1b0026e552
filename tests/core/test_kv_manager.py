"""A state machine over the KV manager: real tables against a naive allocator, contents checked cell by cell."""

from itertools import takewhile
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from octavo.core.hashing import HashChain, pack_tokens
from octavo.core.invariants import InvariantError, check_cache
from octavo.core.kv_fault import KVFaultError
from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig, FilledBlocks, PrefixHit
from octavo.core.pool import BlockPool
from octavo.core.step import BlockCopy
from octavo.core.table import BlockTables
from tests.core.naive_allocator import NaiveAllocator, NaiveSequence

BLOCK_SIZE = 4
TOKENS = st.integers(0, 2)


class Owner(NamedTuple):
    """Under which salt a sequence stands, and how many of its first tokens are open to all in spite of it."""

    salt: str | None
    num_open: int

    def sees(self, other: "Owner", published: list[int], tokens: list[int]) -> int:
        """How many of ``tokens`` may be found in what another has published."""
        common = _common(published, tokens)
        if self.salt == other.salt:
            return common
        return min(common, *(owner.num_open for owner in (self, other) if owner.salt is not None))


OWNERS = st.sampled_from([Owner(None, 0), Owner("a", 0), Owner("b", 0), Owner("a", 3), Owner("b", 6), Owner("b", 8)])


def _common(first: list[int], second: list[int]) -> int:
    """Leading tokens that two sequences share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


class Sequence:
    """A sequence in both worlds."""

    def __init__(self, tables: BlockTables, naive: NaiveSequence, chain: HashChain, owner: Owner) -> None:
        self.tables = tables
        self.naive = naive
        self.chain = chain
        self.owner = owner
        self.num_published = 0
        """Full blocks."""
        self.num_tail_end = 0
        """Tokens up to the end of the tail that was published last."""
        self.publishes = True

    def lasting_tokens(self, pool: BlockPool) -> list[int]:
        """Those whose blocks carry a name as long as the sequence lives: full published blocks, and a named tail."""
        count = self.num_published * BLOCK_SIZE
        if self.num_published < self.tables.num_blocks and pool.names[self.tables.groups[0][self.num_published]]:
            count = min(self.num_tail_end, len(self.naive.tokens))
        return self.naive.tokens[:count]


class KVManagerMachine(RuleBasedStateMachine):
    """Memory is played by a dict from (block, offset) to token, so sharing and copying show in contents.

    What a lookup finds lies between two bounds: all that live sequences of the same salt have published, and all that
    was ever published that this salt may see.
    """

    sequences = Bundle("sequences")

    @initialize(num_blocks=st.integers(1, 14), num_groups=st.integers(1, 2))
    def start(self, num_blocks: int, num_groups: int) -> None:
        self.num_groups = num_groups
        self.kv = KVCacheManager(CacheConfig(num_blocks * num_groups, BLOCK_SIZE, num_groups, True, b"x"))
        self.naive = NaiveAllocator(num_blocks, BLOCK_SIZE)
        self.live: list[Sequence] = []
        self.ever_published: list[tuple[Owner, list[int]]] = []
        self.memory: dict[tuple[int, int], int] = {}
        self.step_id = 0

    @rule(target=sequences, tokens=st.lists(TOKENS, min_size=1, max_size=14), owner=OWNERS)
    def allocate(self, tokens: list[int], owner: Owner) -> object:
        chain = self.kv.hasher.chain(owner.salt, min(owner.num_open, len(tokens)))
        self.kv.hasher.extend(chain, tokens, len(tokens))
        hit = self.kv.lookup_prefix(chain, tokens)
        self._check_hit(hit, tokens, owner)
        free, held = self.kv.pool.num_free, self.kv.held_blocks
        allocation = self.kv.allocate(hit, len(tokens), 0, self.step_id)
        if allocation is None:
            assert not self.kv.can_hold(hit, len(tokens))
            assert (self.kv.pool.num_free, self.kv.held_blocks) == (free, held), "a refused commit changes nothing"
            return multiple()
        assert [copy.source for copy in allocation.copies] == list(hit.tail_ids)
        assert self.kv.held_blocks == [*held, *hit.tail_ids], "what is copied from is held"
        self._copy(allocation.copies)
        cached = [self._naive_block(block) for block in hit.block_ids[0]]
        sequence = Sequence(allocation.tables, self.naive.start(tokens, cached), chain, owner)
        sequence.num_published = len(cached)
        self._write(sequence, hit.num_tokens, len(tokens))
        self.live.append(sequence)
        return sequence

    def _check_hit(self, hit: PrefixHit, tokens: list[int], owner: Owner) -> None:
        assert hit.num_tokens < len(tokens)
        num_tail_tokens = hit.num_tokens - len(hit.block_ids[0]) * BLOCK_SIZE
        assert 0 <= num_tail_tokens < BLOCK_SIZE
        assert bool(hit.tail_ids) == (num_tail_tokens > 0)
        for group in range(self.num_groups):
            cells = [self.memory[block, i] for block in hit.block_ids[group] for i in range(BLOCK_SIZE)]
            cells += [self.memory[hit.tail_ids[group], i] for i in range(num_tail_tokens)]
            assert cells == tokens[: hit.num_tokens]
        most = max((owner.sees(other, seen, tokens) for other, seen in self.ever_published), default=0)
        assert hit.num_tokens <= most, "a salt finds what it may not see"
        if self.num_groups == 1:  # else a tail can have left the cache in another group
            same = [sequence for sequence in self.live if sequence.owner == owner]
            least = max((_common(s.lasting_tokens(self.kv.pool), tokens) for s in same), default=0)
            assert hit.num_tokens >= min(least, len(tokens) - 1)

    def _naive_block(self, block_id: int) -> object:
        for sequence in self.live:
            if block_id in sequence.tables.groups[0]:
                return sequence.naive.blocks[sequence.tables.groups[0].index(block_id)]
        return object()

    @rule(sequence=sequences, token=TOKENS)
    def append(self, sequence: Sequence, token: int) -> None:
        if sequence not in self.live:
            return
        length = len(sequence.naive.tokens)
        if length >= sequence.tables.capacity:
            before = self.kv.pool.num_free, [list(table) for table in sequence.tables.groups]
            extension = self.kv.extend(sequence.tables, length + 1, self.step_id)
            if extension is None:
                assert before == (self.kv.pool.num_free, [list(table) for table in sequence.tables.groups])
                return
            self._copy(extension.copies)
        self.naive.append(sequence.naive, token)
        self._write(sequence, length, length + 1)

    @rule()
    def land(self) -> None:
        self.kv.land(self.step_id)
        self.step_id += 1
        assert not self.kv.held_blocks

    @rule(sequence=sequences, in_flight=st.booleans(), with_tail=st.booleans())
    def publish(self, sequence: Sequence, in_flight: bool, with_tail: bool) -> None:
        if sequence not in self.live or not sequence.publishes:
            return
        tokens, chain = sequence.naive.tokens, sequence.chain
        self.kv.hasher.extend(chain, tokens, len(tokens))
        first, end = sequence.num_published, len(chain.hashes)
        packed = [pack_tokens(tokens[i * BLOCK_SIZE : (i + 1) * BLOCK_SIZE]) for i in range(first, end)]
        filled = FilledBlocks(first, chain.hashes[first:], chain.parents[first:end], packed)
        for change in self.kv.publish(sequence.tables, filled, self.step_id if in_flight else None):
            if change.group == 0:
                index = change.logical_block
                sequence.naive.blocks[index] = self._other_naive_block(sequence, change.block_id)
        for index, block in enumerate(packed, first):
            self.kv.open_head(chain, index, block, chain.hashes[index])
        sequence.num_published = end
        num_tokens = end * BLOCK_SIZE
        if with_tail:
            self.kv.publish_tail(sequence.tables, chain, tokens, len(tokens))
            num_tokens = sequence.num_tail_end = len(tokens)
        self.ever_published.append((sequence.owner, tokens[:num_tokens]))

    def _other_naive_block(self, sequence: Sequence, block_id: int) -> object:
        for other in self.live:
            if other is not sequence and block_id in other.tables.groups[0]:
                return other.naive.blocks[other.tables.groups[0].index(block_id)]
        return object()

    @rule(target=sequences, sequence=sequences)
    def fork(self, sequence: Sequence) -> object:
        if sequence not in self.live:
            return multiple()
        tables = self.kv.fork(sequence.tables, len(sequence.naive.tokens), 1)
        child = Sequence(tables, self.naive.fork(sequence.naive), sequence.chain.copy(), sequence.owner)
        child.num_published = sequence.num_published
        child.publishes = sequence.publishes
        child.num_tail_end = sequence.num_tail_end
        self.live.append(child)
        return child

    @rule(sequence=consumes(sequences))
    def free(self, sequence: Sequence) -> None:
        if sequence in self.live:
            self.live.remove(sequence)
            self.naive.sequences.remove(sequence.naive)
            self.kv.free(sequence.tables)

    @rule()
    def forget_cached(self) -> None:
        self.kv.forget_cached()
        self.ever_published.clear()
        for sequence in self.live:
            sequence.publishes = False
            sequence.num_published = sequence.num_tail_end = 0

    def _copy(self, copies: list[BlockCopy]) -> None:
        for source, target in copies:
            for offset in range(BLOCK_SIZE):
                self.memory.pop((target, offset), None)
                if (source, offset) in self.memory:
                    self.memory[target, offset] = self.memory[source, offset]

    def _write(self, sequence: Sequence, start: int, end: int) -> None:
        for table in sequence.tables.groups:
            for position in range(start, end):
                block = table[position // BLOCK_SIZE]
                num_sharers = self.kv.pool.ref_counts[block] - self.kv.held_blocks.count(block)
                assert num_sharers == 1, "a write into a shared block"
                self.memory[block, position % BLOCK_SIZE] = sequence.naive.tokens[position]

    @invariant()
    def pool_is_consistent(self) -> None:
        check_cache(self.kv, [sequence.tables for sequence in self.live])

    @invariant()
    def contents_are_right(self) -> None:
        for sequence in self.live:
            for table in sequence.tables.groups:
                cells = [
                    self.memory[table[position // BLOCK_SIZE], position % BLOCK_SIZE]
                    for position in range(len(sequence.naive.tokens))
                ]
                assert cells == sequence.naive.tokens

    @invariant()
    def usage_agrees_with_the_naive_allocator(self) -> None:
        held = len(set(self.kv.held_blocks) - {b for s in self.live for t in s.tables.groups for b in t})
        used = self.kv.pool.num_blocks - self.kv.pool.num_free - held
        assert used == self.naive.num_used * self.num_groups


TestKVManager = KVManagerMachine.TestCase
TestKVManager.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def _manager(num_blocks: int = 8) -> KVCacheManager:
    return KVCacheManager(CacheConfig(num_blocks, BLOCK_SIZE, 1, True, b"x"))


NO_HIT = PrefixHit(0, ((),))


def _start(kv: KVCacheManager, num_tokens: int, row_id: int = 0) -> BlockTables:
    """A sequence that finds nothing in the cache."""
    allocation = kv.allocate(NO_HIT, num_tokens, row_id, 0)
    assert allocation is not None
    return allocation.tables


def _chain(kv: KVCacheManager, tokens: list[int], salt: str | None = None) -> HashChain:
    chain = kv.hasher.chain(salt)
    kv.hasher.extend(chain, tokens, len(tokens))
    return chain


def test_leaves_are_evicted_before_their_parents() -> None:
    kv = _manager(4)
    tokens = list(range(12))
    chain = _chain(kv, tokens)
    tables = _start(kv, 12)
    packed = [pack_tokens(tokens[start : start + BLOCK_SIZE]) for start in (0, 4, 8)]
    kv.publish(tables, FilledBlocks(0, chain.hashes, chain.parents[:3], packed), None)
    kv.free(tables)
    assert kv.lookup_prefix(chain, [*tokens, 0]).num_tokens == 12
    _start(kv, 8)
    assert kv.lookup_prefix(chain, [*tokens, 0]).num_tokens == 8
    assert kv.pool.num_evicted == 1


def test_copied_from_block_is_held_until_its_step_lands() -> None:
    kv = _manager()
    parent = _start(kv, 6)
    child = kv.fork(parent, 6, 1)
    extension = kv.extend(child, 7, step_id=5)
    assert extension is not None
    ((source, target),) = extension.copies
    assert (source, target) == (parent.groups[0][1], child.groups[0][1])
    kv.free(parent)
    assert kv.held_blocks == [source]
    assert kv.pool.ref_counts[source] == 1
    kv.land(4)
    assert kv.held_blocks == [source]
    kv.land(5)
    assert kv.held_blocks == []
    assert kv.pool.num_free == 8 - 2


def test_the_last_owner_of_a_tail_copies_nothing() -> None:
    """Also in the step whose copies still read it: they come before anything is written."""
    kv = _manager()
    parent = _start(kv, 6)
    children = [kv.fork(parent, 6, 1 + index) for index in range(2)]
    extensions = [kv.extend(tables, 7, step_id=5) for tables in (parent, *children)]
    assert [len(extension.copies) for extension in extensions if extension] == [1, 1, 0]
    assert kv.num_copies == 2


def test_hashes_are_stable_across_processes_and_settings_enter_them() -> None:
    def first_hash(fingerprint: bytes, salt: str | None) -> str:
        kv = KVCacheManager(CacheConfig(1, BLOCK_SIZE, 1, True, fingerprint))
        return _chain(kv, [1, 2, 3, 4], salt).hashes[0].hex()

    assert first_hash(b"x", None) == "03bcd6604ab9ad6afc1bedc17103fc3e"
    assert len({first_hash(f, s) for f in (b"x", b"y") for s in (None, "", "a")}) == 6


@pytest.mark.parametrize("fault", ["double free", "lost reference", "stale hash", "off by one"])
def test_the_checker_catches_an_injected_fault(fault: str) -> None:
    """The power check of the invariants."""
    kv = _manager()
    tables = _start(kv, 8)
    check_cache(kv, [tables])
    if fault == "double free":
        kv.pool.release(tables.groups[0])
        with pytest.raises(KVFaultError, match="freed twice"):
            kv.free(tables)
        return
    if fault == "lost reference":
        kv.pool.acquire(tables.groups[0][:1])
    elif fault == "stale hash":
        kv.pool.names[tables.groups[0][0]] = b"stale"
    else:
        tables.groups[0][1] += 1
    with pytest.raises(InvariantError):
        check_cache(kv, [tables])
