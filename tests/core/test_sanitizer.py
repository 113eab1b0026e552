"""The KV sanitizer: a fault of each kind, put into the real allocator or planner, is caught and named; and its shadow
follows what is right without an alarm (which every test that uses the harness shows)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from octavo.core.child_index import ChildIndex
from octavo.core.hashing import HashChain
from octavo.core.host_pool import HostPool
from octavo.core.invariants import InvariantError
from octavo.core.kv_fault import KVFault, KVFaultError
from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import PrefixHit
from octavo.core.pool import BlockPool
from octavo.core.sanitizer import CHECK_INTERVAL
from octavo.core.scheduler import Scheduler
from octavo.core.sliding import Slide, Slider
from octavo.core.step import BlockCopy, StepPlan, TableWrite
from octavo.core.table import BlockTables
from tests.support.scheduling import Harness

DEPTHS = pytest.mark.parametrize("depth", [1, 2])
PROMPT = list(range(10))
Patch = pytest.MonkeyPatch


class Watched(Harness):
    """A harness whose own checks are off: what is found is found by the sanitizer."""

    def plan(self) -> bool:
        plan = self.scheduler.schedule()
        if plan is not None:
            self.pending.append(self.sanitizer.submit(plan))
        return plan is not None

    def check(self) -> None:
        """Not here."""


def wrap(patch: Patch, owner: type, name: str, changed: Callable[..., Any]) -> None:
    """``changed(real, self, ...)`` instead of a method."""
    real = getattr(owner, name)
    patch.setattr(owner, name, lambda self, *args, **more: changed(real, self, *args, **more))


def change_plans(patch: Patch, changed: Callable[[StepPlan], StepPlan]) -> None:
    """Plans as they would be if the planner were wrong."""

    def schedule(real: Callable[[Scheduler], StepPlan | None], self: Scheduler) -> StepPlan | None:
        plan = real(self)
        return None if plan is None else changed(plan)

    wrap(patch, Scheduler, "schedule", schedule)


def expect(fault: KVFault, run: Callable[[], object], *words: str) -> None:
    """The run ends with this fault, in one sentence with these words."""
    with pytest.raises(KVFaultError) as caught:
        run()
    assert caught.value.fault is fault, str(caught.value)
    message = str(caught.value)
    assert fault.value in message
    assert "\n" not in message
    assert all(word in message for word in words), message


# One fault of each kind


@DEPTHS
def test_double_free(monkeypatch: Patch, depth: int) -> None:
    def free(real: Callable[..., None], self: KVCacheManager, tables: BlockTables) -> None:
        self.pool.release(tables.groups[0])
        real(self, tables)

    wrap(monkeypatch, KVCacheManager, "free", free)
    harness = Watched(depth=depth)
    harness.add(PROMPT, 6)
    expect(KVFault.DOUBLE_FREE, harness.run, "freed twice")


@DEPTHS
def test_lost_reference_of_a_cached_block(monkeypatch: Patch, depth: int) -> None:
    """A hit that forgets to acquire: the block counts as free while a table names it."""
    harness = Watched(depth=depth)
    harness.add(PROMPT, 2)
    harness.run()
    wrap(monkeypatch, BlockPool, "acquire", lambda real, self, block_ids: None)
    harness.add([*PROMPT, 77], 2)
    expect(KVFault.LOST_REFERENCE, harness.run, "0 references")


@DEPTHS
def test_lost_reference_of_a_fork(monkeypatch: Patch, depth: int) -> None:
    wrap(monkeypatch, BlockPool, "acquire", lambda real, self, block_ids: None)
    harness = Watched(depth=depth)
    harness.add_choices(PROMPT, 3, 4)
    expect(KVFault.LOST_REFERENCE, harness.run, "3 tables")


@DEPTHS
@pytest.mark.parametrize(
    ("shifted", "words"),
    [
        (lambda write: write._replace(logical_block=write.logical_block + 1), "comes before entry"),
        (lambda write: write._replace(logical_block=write.logical_block - 1), "should be"),
        (lambda write: write._replace(block_id=write.block_id + 1), "should be"),
        (lambda write: write._replace(block_id=-1), "block -1 of 24"),
        (lambda write: write._replace(block_id=24), "block 24 of 24"),
    ],
)
def test_off_by_one_in_the_table(
    monkeypatch: Patch, depth: int, shifted: Callable[[TableWrite], TableWrite], words: str
) -> None:
    change_plans(monkeypatch, lambda plan: replace(plan, table_writes=tuple(map(shifted, plan.table_writes))))
    harness = Watched(depth=depth)
    harness.add(PROMPT, 12)
    expect(KVFault.WRONG_TABLE, harness.run, words)


@DEPTHS
def test_off_by_one_in_the_table_of_a_new_row(monkeypatch: Patch, depth: int) -> None:
    def rotate(plan: StepPlan) -> StepPlan:
        rows = (replace(row, block_ids=tuple((*ids[1:], ids[0]) for ids in row.block_ids)) for row in plan.new_rows)
        return replace(plan, new_rows=tuple(rows))

    change_plans(monkeypatch, rotate)
    harness = Watched(depth=depth)
    harness.add(PROMPT, 2)
    expect(KVFault.WRONG_TABLE, harness.run, "is 1 to the runner, but should be 0")


@DEPTHS
def test_a_table_write_is_forgotten(monkeypatch: Patch, depth: int) -> None:
    change_plans(monkeypatch, lambda plan: replace(plan, table_writes=()))
    harness = Watched(depth=depth)
    harness.add(PROMPT, 12)
    expect(KVFault.WRONG_TABLE, harness.run, "is None to the runner")


@DEPTHS
def test_premature_reuse(monkeypatch: Patch, depth: int) -> None:
    """A block is given out while its first owner still runs."""
    harness = Watched(depth=depth)
    first = harness.add(PROMPT, 12)
    harness.plan()

    def allocate(real: Callable[..., list[int]], self: BlockPool, count: int) -> list[int]:
        assert first.tables is not None
        self._free.append(first.tables.groups[0][0])
        return real(self, count)

    wrap(monkeypatch, BlockPool, "allocate", allocate)
    harness.add([50, 51, 52], 12)
    expect(KVFault.PREMATURE_REUSE, harness.run, "block 0", "row 0 still has it")


@DEPTHS
def test_premature_reuse_behind_a_window(monkeypatch: Patch, depth: int) -> None:
    """A block that a sequence still sees is given back and given out, and the runner is not told."""

    def take(real: Callable[..., list[TableWrite]], self: Slider, slides: list[Slide]) -> list[TableWrite]:
        for tables, group, end in slides:
            block_id = tables.groups[group][end]
            self._pool.forget([block_id])
            self._pool.release([block_id])
        return real(self, slides)

    harness = Watched(num_groups=2, windows=(None, 8), depth=depth, num_blocks=40)
    harness.add(PROMPT, 30)
    wrap(monkeypatch, Slider, "take", take)
    expect(KVFault.PREMATURE_REUSE, harness.run, "row 0 still has it")


@DEPTHS
def test_a_window_that_is_too_small(monkeypatch: Patch, depth: int) -> None:
    """All agree that the block was given back, but the next row sees it."""

    def due(real: Callable[..., list[Slide]], self: Slider, sequences: Any) -> list[Slide]:
        return [slide._replace(end=slide.end + 2) for slide in real(self, sequences)]

    wrap(monkeypatch, Slider, "due", due)
    harness = Watched(num_groups=2, windows=(None, 8), depth=depth, num_blocks=40)
    harness.add(PROMPT, 30)
    expect(KVFault.MISSING_CONTENTS, harness.run, "given back a block that it still sees in layer group 1")


@DEPTHS
def test_the_runner_is_not_told_what_is_given_back(monkeypatch: Patch, depth: int) -> None:
    def take(real: Callable[..., list[TableWrite]], self: Slider, slides: list[Slide]) -> list[TableWrite]:
        real(self, slides)
        return []

    wrap(monkeypatch, Slider, "take", take)
    harness = Watched(num_groups=2, windows=(None, 8), depth=depth, num_blocks=40)
    harness.add(PROMPT, 30)
    expect(KVFault.WRONG_TABLE, harness.run, "should be -1")


@DEPTHS
def test_freed_too_early(monkeypatch: Patch, depth: int) -> None:
    """Blocks come back while the sequence runs; nobody has taken them yet."""
    harness = Watched(depth=depth)
    request = harness.add(PROMPT, 12)
    harness.plan()
    assert request.tables is not None
    harness.kv.pool.release(request.tables.groups[0][:1])
    expect(KVFault.LOST_REFERENCE, harness.run, "block 0", "0 references")


@DEPTHS
@pytest.mark.parametrize("num_groups", [1, 2])
def test_published_under_another_hash(monkeypatch: Patch, depth: int, num_groups: int) -> None:
    def publish(real: Callable[..., Any], self: BlockPool, block_ids: list[int], names: Sequence[bytes]) -> Any:
        return real(self, block_ids, [b"\x00" + name[1:] for name in names])

    wrap(monkeypatch, BlockPool, "publish", publish)
    harness = Watched(depth=depth, num_groups=num_groups)
    harness.add(PROMPT, 12)
    expect(KVFault.STALE_HASH, harness.run, "under a name that its contents do not have")


@DEPTHS
def test_a_tail_is_published_under_another_hash(monkeypatch: Patch, depth: int) -> None:
    wrap(monkeypatch, BlockPool, "publish_tail", lambda real, self, block_id, name: real(self, block_id, name[::-1]))
    harness = Watched(depth=depth)
    harness.add(PROMPT, 12)
    expect(KVFault.STALE_HASH, harness.run, "under a name that its contents do not have")


def _fill_cache(harness: Watched) -> list[int]:
    """Fill the pool with cached blocks; returns the prompt whose blocks go first."""
    for start in range(0, 400, 100):
        harness.add(list(range(start, start + 20)), 4)
        harness.run()
    assert harness.kv.pool.num_cached > 20
    return list(range(20))


@DEPTHS
def test_evicted_but_still_in_the_cache(monkeypatch: Patch, depth: int) -> None:
    harness = Watched(depth=depth)
    _fill_cache(harness)

    def evict(real: Callable[..., Any], self: BlockPool, count: int) -> list[int]:
        names, index = self.names.copy(), self._index.copy()
        evicted: list[int] = real(self, count)
        self.names, self._index = names, index
        return evicted

    wrap(monkeypatch, BlockPool, "_evict", evict)
    harness.add(list(range(700, 720)), 4)
    expect(KVFault.STALE_HASH, harness.run)


@DEPTHS
def test_evicted_but_still_in_the_index(monkeypatch: Patch, depth: int) -> None:
    """The block has lost its name and is found by it: only when it is, or by the full check, can this be seen."""
    harness = Watched(depth=depth)
    old = _fill_cache(harness)

    def evict(real: Callable[..., Any], self: BlockPool, count: int) -> list[int]:
        index = self._index.copy()
        evicted: list[int] = real(self, count)
        self._index = index
        return evicted

    wrap(monkeypatch, BlockPool, "_evict", evict)
    harness.sanitizer._num_plans = 1  # the next full check is far
    harness.add(list(range(700, 740)), 1)
    harness.run()
    harness.add(old, 4)
    expect(KVFault.STALE_HASH, harness.run, "by a name that its contents do not have")


@DEPTHS
def test_a_copy_on_write_is_skipped(monkeypatch: Patch, depth: int) -> None:
    """Choices write into the tail of their prompt side by side."""
    wrap(monkeypatch, KVCacheManager, "_shared_tail", lambda real, self, tables: [])
    harness = Watched(depth=depth)
    harness.add_choices(PROMPT, 3, 4)
    expect(KVFault.SHARED_WRITE, harness.run, "3 tables share")


@DEPTHS
def test_a_copy_is_left_out(monkeypatch: Patch, depth: int) -> None:
    change_plans(monkeypatch, lambda plan: replace(plan, copies=()))
    harness = Watched(depth=depth)
    harness.add_choices(PROMPT, 3, 4)
    expect(KVFault.MISSING_CONTENTS, harness.run, "positions 8 to 9", "holds 0 tokens")


@DEPTHS
def test_the_wrong_block_is_copied(monkeypatch: Patch, depth: int) -> None:
    def from_head(plan: StepPlan) -> StepPlan:
        return replace(plan, copies=tuple(BlockCopy(0, target) for _, target in plan.copies))

    change_plans(monkeypatch, from_head)
    harness = Watched(depth=depth)
    harness.add_choices(PROMPT, 3, 4)
    expect(KVFault.WRONG_CONTENTS, harness.run, "positions 8 to 9")


@DEPTHS
def test_a_hit_in_the_wrong_order(monkeypatch: Patch, depth: int) -> None:
    def lookup(real: Callable[..., PrefixHit], self: KVCacheManager, *args: Any) -> PrefixHit:
        hit = real(self, *args)
        return hit._replace(block_ids=tuple(ids[::-1] for ids in hit.block_ids))

    harness = Watched(depth=depth)
    harness.add(PROMPT, 2)
    harness.run()
    wrap(monkeypatch, KVCacheManager, "lookup_prefix", lookup)
    harness.add([*PROMPT, 77], 2)
    expect(KVFault.WRONG_CONTENTS, harness.run, "positions 0 to 3")


@DEPTHS
@pytest.mark.parametrize("length", [3, 10])
def test_a_hit_across_salts(monkeypatch: Patch, depth: int, length: int) -> None:
    """The same tokens, under another tenant's salt: whole blocks, and the head of one."""

    def lookup(real: Callable[..., PrefixHit], self: KVCacheManager, _: HashChain, ids: list[int], *more: Any) -> Any:
        foreign = self.hasher.chain("theirs")
        self.hasher.extend(foreign, ids, len(ids))
        return real(self, foreign, ids, *more)

    harness = Watched(depth=depth)
    harness.add(PROMPT[:length], 2, salt="theirs")
    harness.run()
    wrap(monkeypatch, KVCacheManager, "lookup_prefix", lookup)
    harness.add([*PROMPT[:length], 77], 2, salt="mine")
    expect(KVFault.WRONG_CONTENTS, harness.run, "positions 0 to")


@DEPTHS
def test_a_hit_inside_a_block_that_is_too_long(monkeypatch: Patch, depth: int) -> None:
    def best(real: Callable[..., Any], self: ChildIndex, *args: Any) -> Any:
        match = real(self, *args)
        return match and match._replace(num_tokens=match.num_tokens + 1)

    harness = Watched(depth=depth)
    harness.add([1, 2, 3, 4, 5, 6], 6)
    harness.run()
    wrap(monkeypatch, ChildIndex, "best", best)
    harness.add([1, 2, 3, 4, 5, 60, 70, 80], 2)
    expect(KVFault.WRONG_CONTENTS, harness.run, "positions 4 to 5")


@DEPTHS
@pytest.mark.parametrize(("by", "count"), [(1, 0), (-1, 0), (0, 1)])
def test_positions_with_a_gap(monkeypatch: Patch, depth: int, by: int, count: int) -> None:
    def shift(plan: StepPlan) -> StepPlan:
        if plan.step_id != 2:
            return plan
        return replace(plan, starts=(plan.starts[0] + by,), counts=(plan.counts[0] + count,))

    change_plans(monkeypatch, shift)
    harness = Watched(depth=depth, num_blocks=60)
    harness.add(PROMPT, 12)
    expect(KVFault.POSITION_GAP, harness.run, "from position")


# The host pool


def _swapping_harness(depth: int) -> Watched:
    """Two sequences that do not fit side by side: the younger is swapped out, and comes back."""
    harness = Watched(depth=depth, num_blocks=10, num_host_blocks=10, preemption_mode="swap", prefix_caching=False)
    harness.add([1, 2, 3, 4, 5, 6], 24)
    harness.add([7, 8, 9, 10, 11, 12], 24)
    return harness


@DEPTHS
def test_swapping_raises_no_alarm(depth: int) -> None:
    harness = _swapping_harness(depth)
    harness.run()
    assert any(plan.swap_outs for plan in harness.runner.plans)
    assert any(plan.swap_ins for plan in harness.runner.plans)


@DEPTHS
@pytest.mark.parametrize("moves", ["swap_outs", "swap_ins"])
def test_a_swap_is_left_out(monkeypatch: Patch, depth: int, moves: str) -> None:
    change_plans(monkeypatch, lambda plan: replace(plan, **{moves: ()}))  # type: ignore[arg-type]
    expect(KVFault.MISSING_CONTENTS, _swapping_harness(depth).run, "positions 0 to 3", "holds 0 tokens")


@DEPTHS
def test_blocks_come_back_to_each_others_places(monkeypatch: Patch, depth: int) -> None:
    def give(real: Callable[..., None], self: HostPool, host_ids: Sequence[int], *args: Any) -> None:
        real(self, host_ids[::-1], *args)

    wrap(monkeypatch, HostPool, "give", give)
    expect(KVFault.WRONG_CONTENTS, _swapping_harness(depth).run, "positions 0 to 3")


@DEPTHS
def test_a_swapped_block_is_dropped(monkeypatch: Patch, depth: int) -> None:
    """The host pool forgets whose block it holds."""

    def take(real: Callable[..., list[int] | None], self: HostPool, device_ids: Sequence[int]) -> list[int] | None:
        host_ids = real(self, device_ids)
        if host_ids:
            self.pool.release(host_ids[:1])
            self.pool.acquire(self.pool.allocate(1))
        return host_ids

    wrap(monkeypatch, HostPool, "take", take)
    harness = _swapping_harness(depth)
    with pytest.raises((KVFaultError, InvariantError)):
        harness.run()


# What it does besides


def test_the_whole_bookkeeping_is_checked_now_and_then() -> None:
    """A contradiction that no step touches."""
    harness = Watched(num_blocks=40)
    harness.add(PROMPT, 2 * CHECK_INTERVAL)
    harness.plan()
    harness.kv.pool.num_shared += 1
    with pytest.raises(InvariantError, match="blocks are shared"):
        harness.run()
    assert len(harness.runner.plans) <= CHECK_INTERVAL


def test_the_runner_never_sees_a_plan_with_a_fault(monkeypatch: Patch) -> None:
    change_plans(monkeypatch, lambda plan: replace(plan, table_writes=()))
    harness = Watched()
    harness.add(PROMPT, 12)
    with pytest.raises(KVFaultError):
        harness.run()
    assert all(plan.num_tokens for plan in harness.runner.plans)
    assert max(map(max, (plan.starts for plan in harness.runner.plans))) < 12


@DEPTHS
def test_dropped_contents_are_poisoned(depth: int) -> None:
    """Each block that is freed without a name, or evicted, is named in a plan before it is written again."""
    harness = Watched(depth=depth, num_blocks=12, prefix_caching=False)
    for start in range(0, 500, 100):
        harness.add(list(range(start, start + 17)), 7)
    harness.run()
    poisons = [block_id for plan in harness.runner.plans for block_id in plan.poisons]
    assert len(poisons) >= 4 * 6
    assert set(poisons) <= set(range(12))


def test_nothing_is_noted_for_nobody() -> None:
    pool = BlockPool(4)
    pool.release(pool.allocate(3))
    assert pool.take_dropped() == ()
    pool.note_dropped()
    pool.release(pool.allocate(3))
    assert sorted(pool.take_dropped()) == [0, 1, 2]
    assert pool.take_dropped() == ()
