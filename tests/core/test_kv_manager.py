"""A state machine over the KV manager: real tables against a naive allocator, contents checked cell by cell."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from octavo.core.invariants import InvariantError, check_cache
from octavo.core.kv_manager import CacheConfig, KVCacheManager, PrefixHit
from octavo.core.table import BlockTables
from tests.core.naive_allocator import NaiveAllocator, NaiveSequence

BLOCK_SIZE = 4
TOKENS = st.integers(0, 2)


class Sequence:
    """A sequence in both worlds."""

    def __init__(self, tables: BlockTables, naive: NaiveSequence) -> None:
        self.tables = tables
        self.naive = naive
        self.hashes: list[bytes] = []
        self.num_published = 0


class KVManagerMachine(RuleBasedStateMachine):
    """Memory is played by a dict from (block, offset) to token, so sharing and copying show in contents."""

    sequences = Bundle("sequences")

    @initialize(num_blocks=st.integers(1, 14), num_groups=st.integers(1, 2))
    def start(self, num_blocks: int, num_groups: int) -> None:
        self.num_groups = num_groups
        self.kv = KVCacheManager(CacheConfig(num_blocks * num_groups, BLOCK_SIZE, num_groups, True, b"x"))
        self.naive = NaiveAllocator(num_blocks, BLOCK_SIZE)
        self.live: list[Sequence] = []
        self.memory: dict[tuple[int, int], int] = {}
        self.step_id = 0

    @rule(target=sequences, tokens=st.lists(TOKENS, min_size=1, max_size=14), salt=st.sampled_from([None, "a"]))
    def allocate(self, tokens: list[int], salt: str | None) -> object:
        hashes: list[bytes] = []
        root = self.kv.hasher.root(salt)
        self.kv.hasher.extend(hashes, root, tokens, len(tokens))
        hit = self.kv.lookup_prefix(hashes, len(tokens))
        assert hit.num_tokens < len(tokens)
        cells = [self.memory[block, i] for block in hit.block_ids[0] for i in range(BLOCK_SIZE)]
        assert cells == tokens[: hit.num_tokens]
        free = self.kv.pool.num_free
        tables = self.kv.allocate(hit, len(tokens), 0)
        if tables is None:
            assert not self.kv.can_hold(hit, len(tokens))
            assert self.kv.pool.num_free == free, "a refused commit changes nothing"
            return multiple()
        cached = [self._naive_block(block) for block in hit.block_ids[0]]
        sequence = Sequence(tables, self.naive.start(tokens, cached))
        sequence.root = root  # type: ignore[attr-defined]
        sequence.num_published = len(cached)
        self._write(sequence, hit.num_tokens, len(tokens))
        self.live.append(sequence)
        return sequence

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
            for copy in extension.copies:
                for offset in range(BLOCK_SIZE):
                    if (copy.source, offset) in self.memory:
                        self.memory[copy.target, offset] = self.memory[copy.source, offset]
        self.naive.append(sequence.naive, token)
        self._write(sequence, length, length + 1)

    @rule()
    def land(self) -> None:
        self.kv.land(self.step_id)
        self.step_id += 1

    @rule(sequence=sequences, in_flight=st.booleans())
    def publish(self, sequence: Sequence, in_flight: bool) -> None:
        if sequence not in self.live:
            return
        tokens = sequence.naive.tokens
        root: bytes = sequence.root  # type: ignore[attr-defined]
        self.kv.hasher.extend(sequence.hashes, root, tokens, len(tokens))
        while sequence.num_published < len(sequence.hashes):
            index = sequence.num_published
            changes = self.kv.publish(
                sequence.tables, index, [sequence.hashes[index]], self.step_id if in_flight else None
            )
            for change in changes:
                if change.group == 0:
                    sequence.naive.blocks[index] = self._other_naive_block(sequence, change.block_id)
            sequence.num_published += 1

    def _other_naive_block(self, sequence: Sequence, block_id: int) -> object:
        for other in self.live:
            if other is not sequence and block_id in other.tables.groups[0]:
                return other.naive.blocks[other.tables.groups[0].index(block_id)]
        return object()

    @rule(target=sequences, sequence=sequences)
    def fork(self, sequence: Sequence) -> object:
        if sequence not in self.live:
            return multiple()
        child = Sequence(self.kv.fork(sequence.tables, len(sequence.naive.tokens), 1), self.naive.fork(sequence.naive))
        child.root = sequence.root  # type: ignore[attr-defined]
        child.num_published = sequence.num_published
        self.live.append(child)
        return child

    @rule(sequence=consumes(sequences))
    def free(self, sequence: Sequence) -> None:
        if sequence in self.live:
            self.live.remove(sequence)
            self.naive.sequences.remove(sequence.naive)
            self.kv.free(sequence.tables)

    @rule()
    def forget_all(self) -> None:
        self.kv.pool.forget_all()
        for sequence in self.live:
            sequence.num_published = 10**9

    def _write(self, sequence: Sequence, start: int, end: int) -> None:
        for table in sequence.tables.groups:
            for position in range(start, end):
                block = table[position // BLOCK_SIZE]
                assert self.kv.pool.ref_counts[block] == 1, "a write into a shared block"
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


def test_leaves_are_evicted_before_their_parents() -> None:
    kv = _manager(4)
    tokens = list(range(12))
    hashes: list[bytes] = []
    kv.hasher.extend(hashes, kv.hasher.root(None), tokens, 12)
    tables = kv.allocate(NO_HIT, 12, 0)
    assert tables is not None
    for index in range(3):
        kv.publish(tables, index, [hashes[index]], None)
    kv.free(tables)
    assert kv.lookup_prefix(hashes, 13).num_tokens == 12
    other = kv.allocate(NO_HIT, 8, 0)
    assert other is not None
    assert kv.lookup_prefix(hashes, 13).num_tokens == 8


def test_copied_from_block_is_held_until_its_step_lands() -> None:
    kv = _manager()
    parent = kv.allocate(NO_HIT, 6, 0)
    assert parent is not None
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


def test_hashes_are_stable_across_processes_and_settings_enter_them() -> None:
    def first_hash(fingerprint: bytes, salt: str | None) -> str:
        kv = KVCacheManager(CacheConfig(1, BLOCK_SIZE, 1, True, fingerprint))
        hashes: list[bytes] = []
        kv.hasher.extend(hashes, kv.hasher.root(salt), [1, 2, 3, 4], 4)
        return hashes[0].hex()

    assert first_hash(b"x", None) == "03bcd6604ab9ad6afc1bedc17103fc3e"
    assert len({first_hash(f, s) for f in (b"x", b"y") for s in (None, "", "a")}) == 6


@pytest.mark.parametrize("fault", ["double free", "lost reference", "stale hash", "off by one"])
def test_the_checker_catches_an_injected_fault(fault: str) -> None:
    """The power check of the invariants."""
    kv = _manager()
    tables = kv.allocate(NO_HIT, 8, 0)
    assert tables is not None
    check_cache(kv, [tables])
    if fault == "double free":
        kv.pool.release(tables.groups[0])
        with pytest.raises(ValueError, match="freed twice"):
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
