"""The disk tier: what it keeps, in which order it forgets, and that answers stay right over faults and restarts."""

import random
from collections import OrderedDict

import pytest

from octavo.core.disk_tier import DiskTier
from octavo.core.request import Request, Status
from octavo.core.step import DiskMoves, StepPlan
from tests.support.fake_disk import FakeDisk
from tests.support.fake_runner import expected_output
from tests.support.scheduling import Harness

NAMES = [bytes([letter]) * 16 for letter in b"abcdefghijkl"]


class LandedTier:
    """A tier whose every plan lands at once, and its file. Block i of memory always holds ``NAMES[i]``."""

    def __init__(self, num_slots: int, disk: FakeDisk | None = None) -> None:
        self.disk = disk or FakeDisk()
        self.tier = DiskTier(num_slots)
        self.tier.load(self.disk.stored())
        self._step = 0

    @property
    def names(self) -> set[bytes]:
        """What can be found."""
        return {name for name in NAMES if self.tier.pool.lookup(name) is not None}

    def keep(self, *block_ids: int) -> DiskMoves:
        self.tier.keep(block_ids, [NAMES[block_id] for block_id in block_ids], on_host=False)
        return self.plan()

    def read(self, *block_ids: int) -> None:
        """A chain, root first, that is there."""
        slots = self.tier.pool.lookup_chain([NAMES[block_id] for block_id in block_ids])
        assert len(slots) == len(block_ids)
        self.tier.pool.acquire(slots)
        self.tier.give(slots, block_ids)
        self.plan()

    def plan(self, fails: bool = False) -> DiskMoves:
        moves = self.tier.issue(self._step)
        self.disk.write(moves, [{block: (0, block) for block in range(len(NAMES))}], [], 1)
        if fails:
            self.tier.roll_back()
        else:
            self.tier.land(self._step)
        self._step += 1
        self.check()
        return moves

    def check(self) -> None:
        """Every name is found where the file has it, nothing is held, and the tier is not larger than it may be."""
        for name in self.names:
            slot = self.tier.pool.lookup(name)
            assert slot is not None
            assert self.disk.slots[slot].name == name
            assert self.disk.slots[slot].cells == [[(0, NAMES.index(name))]]
        assert self.tier.held_slots == []
        assert self.tier.pool.num_free == self.tier.pool.num_blocks
        assert set(self.disk.slots) <= set(range(self.tier.pool.num_blocks))

    def restarted(self) -> "LandedTier":
        return LandedTier(self.tier.pool.num_blocks, self.disk)


def test_the_least_recently_used_leaf_makes_room() -> None:
    tier = LandedTier(4)
    tier.keep(2, 1, 0)  # a chain, its leaf first
    tier.keep(3)
    tier.read(0, 1)
    tier.keep(4)
    assert tier.names == {NAMES[block_id] for block_id in (3, 1, 0, 4)}
    tier.keep(5, 6)
    assert tier.names == {NAMES[block_id] for block_id in (0, 4, 5, 6)}


def test_of_more_than_fits_the_best_are_kept() -> None:
    tier = LandedTier(3)
    moves = tier.keep(0, 1, 2, 3, 4)
    assert [write.name for write in moves.writes] == [NAMES[4], NAMES[3], NAMES[2]], "the best first"
    assert tier.names == set(NAMES[2:5])


def test_what_is_there_is_ranked_and_not_written_again() -> None:
    tier = LandedTier(3)
    tier.keep(1, 0)
    moves = tier.keep(2, 1, 0)  # a leaf more
    assert [write.name for write in moves.writes] == [NAMES[2]]
    tier.keep(3)
    assert tier.names == {NAMES[block_id] for block_id in (1, 0, 3)}, "the leaf went, not its parents"


def test_contents_dropped_twice_in_a_plan_take_one_slot() -> None:
    tier = LandedTier(4)
    tier.tier.keep([0], [NAMES[0]], on_host=True)
    assert len(tier.keep(0).writes) == 1


def test_a_tier_without_slots_keeps_nothing() -> None:
    assert not LandedTier(0).keep(0, 1)


@pytest.mark.parametrize("seed", range(60))
def test_it_keeps_what_a_dict_would(seed: int) -> None:
    """Evictions and reads at random, with restarts between them: an ordered dict of the names says what is there."""
    rng = random.Random(seed)
    num_slots = rng.randint(1, 8)
    tier, expected = LandedTier(num_slots), OrderedDict[bytes, None]()
    for _ in range(60):
        action = rng.random()
        if action < 0.6:
            block_ids = rng.sample(range(len(NAMES)), rng.randint(1, 6))
            tier.keep(*block_ids)
            known = [NAMES[block_id] for block_id in block_ids if NAMES[block_id] in expected]
            new = [NAMES[block_id] for block_id in block_ids if NAMES[block_id] not in expected]
            new = new[max(0, len(new) - num_slots + len(known)) :]
            for name in (NAMES[block_id] for block_id in block_ids):
                if name in known or name in new:
                    expected[name] = None
                    expected.move_to_end(name)
            while len(expected) > num_slots:
                expected.popitem(last=False)
        elif action < 0.8 and expected:
            block_ids = [NAMES.index(name) for name in rng.sample(sorted(expected), rng.randint(1, len(expected)))]
            tier.read(*block_ids)
            for block_id in reversed(block_ids):
                expected.move_to_end(NAMES[block_id])
        elif action < 0.85:
            tier.tier.forget_cached()
            expected.clear()
            tier.plan()
        elif action < 0.95:
            tier = tier.restarted()
        assert tier.names == set(expected)


def test_what_a_failed_plan_read_is_not_found_again_nor_after_a_restart() -> None:
    tier = LandedTier(4)
    tier.keep(1, 0)
    slots = tier.tier.pool.lookup_chain([NAMES[0]])
    tier.tier.pool.acquire(slots)
    tier.tier.give(slots, [0])
    tier.plan(fails=True)
    assert tier.names == {NAMES[1]}
    tier.plan()
    assert tier.restarted().names == {NAMES[1]}


def test_what_is_forgotten_while_it_is_written_stays_forgotten() -> None:
    tier = LandedTier(4)
    tier.tier.keep([0], [NAMES[0]], on_host=False)
    moves = tier.tier.issue(0)
    tier.disk.write(moves, [{0: (0, 0)}], [], 1)
    tier.tier.forget_cached()
    tier.tier.land(0)
    assert tier.names == set()
    tier.plan()
    assert tier.restarted().names == set()


# --- with the scheduler ----------------------------------------------------------------------------------------------

PROMPT = list(range(1, 15))  # three full blocks and two tokens


def _harness(disk: FakeDisk, **sizes: int | bool) -> Harness:
    return Harness(disk=disk, **{"num_blocks": 8, "num_disk_slots": 6, **sizes})  # type: ignore[arg-type]


def _ask(harness: Harness, prompt: list[int], max_tokens: int = 3) -> Request:
    request = harness.add(prompt, max_tokens)
    harness.run()
    assert request.token_ids[len(prompt) :] == expected_output(prompt, max_tokens)
    return request


def _close(harness: Harness) -> StepPlan:
    plan = harness.scheduler.plan_last()
    assert plan is not None
    harness.sanitizer.submit(plan).result()
    return plan


@pytest.mark.parametrize("num_host_blocks", [0, 1, 4])
def test_what_memory_evicts_comes_back_from_disk(num_host_blocks: int) -> None:
    harness = _harness(FakeDisk(), num_host_blocks=num_host_blocks, keep_evicted=True)
    _ask(harness, PROMPT)
    _ask(harness, list(range(100, 128)))
    again = _ask(harness, PROMPT)
    assert again.num_cached_tokens == 12
    assert harness.kv.host.disk.num_read == 3 - min(3, num_host_blocks)


@pytest.mark.parametrize("num_host_blocks", [0, 4])
def test_a_restart_begins_warm(num_host_blocks: int) -> None:
    disk = FakeDisk()
    first = _harness(disk, num_host_blocks=num_host_blocks, keep_evicted=True)
    assert _ask(first, PROMPT).num_cached_tokens == 0
    assert len(_close(first).disk.writes) == 4, "the first of the output's tokens filled a block"
    second = _harness(disk)
    assert _ask(second, PROMPT).num_cached_tokens == 12
    assert second.kv.host.disk.num_read == 3
    assert not _close(second).disk.writes, "it is all there"


def test_without_slots_there_is_no_last_plan() -> None:
    assert Harness().scheduler.plan_last() is None


def test_a_damaged_slot_is_computed_again_once() -> None:
    disk = FakeDisk()
    first = _harness(disk)
    _ask(first, PROMPT)
    _close(first)
    second = _harness(disk)
    disk.damage(second.kv.host.disk.pool.lookup_chain(_names(second, PROMPT))[1])
    beside = second.add([7, 7, 7], 5)
    request = _ask(second, PROMPT)
    assert beside.token_ids[3:] == expected_output([7, 7, 7], 5)
    assert request.status is Status.LENGTH
    assert disk.num_damaged_reads == 1
    _close(second)
    third = _harness(disk)
    assert _ask(third, PROMPT).num_cached_tokens == 12
    assert disk.num_damaged_reads == 1


def _names(harness: Harness, prompt: list[int]) -> list[bytes]:
    chain = harness.kv.hasher.chain(None)
    harness.kv.hasher.extend(chain, prompt, len(prompt))
    return chain.hashes


def test_a_request_that_always_fails_ends_though_its_prompt_is_on_disk() -> None:
    disk = FakeDisk()
    first = _harness(disk)
    _ask(first, PROMPT)
    _close(first)
    second = _harness(disk)

    def fails(plan: StepPlan) -> None:
        raise RuntimeError("always")

    second.runner.fails = fails
    request = second.add(PROMPT, 3)
    second.run(max_steps=50)
    assert request.status is Status.FAILED


def test_other_settings_find_nothing() -> None:
    """Names are rooted in the fingerprint: contents of another model never match, were they in the same file."""
    disk = FakeDisk()
    first = _harness(disk)
    _ask(first, PROMPT)
    _close(first)
    for number, slot in disk.slots.items():
        slot.name = bytes([number]) * 16
    assert _ask(_harness(disk), PROMPT).num_cached_tokens == 0


def test_a_reset_reaches_the_disk() -> None:
    disk = FakeDisk()
    first = _harness(disk)
    _ask(first, PROMPT)
    _close(first)
    second = _harness(disk)
    second.scheduler.reset_prefix_cache()
    assert _ask(second, [9, 9]).num_cached_tokens == 0
    assert disk.stored() == []


@pytest.mark.parametrize("num_steps", [0, 1, 2, 4])
def test_moves_that_are_due_are_made_without_a_request(num_steps: int) -> None:
    """A reset beside a request that has come this far: the file is empty at once, and the request's answer is right."""
    disk = FakeDisk()
    first = _harness(disk)
    _ask(first, PROMPT)
    _close(first)
    second = _harness(disk)
    beside = second.add([*PROMPT, 1], 5)
    for _ in range(2 * num_steps):
        second.step()
    second.scheduler.reset_prefix_cache()
    assert disk.stored()
    second.pending.append(second.sanitizer.submit(second.scheduler.plan_moves()))
    second.land()
    assert disk.stored() == []
    second.run()
    assert second.scheduler.counters.num_preemptions == 0
    second.check_answer(beside)
    assert beside.status is Status.LENGTH


@pytest.mark.parametrize("seed", range(50))
def test_random_work_over_restarts(seed: int) -> None:
    """Pools of all sizes, faults, damaged slots, ends with and without a last plan: every answer is right."""
    rng = random.Random(seed)
    num_groups = rng.choice([1, 1, 2])
    disk = FakeDisk()
    sizes = {
        "num_blocks": rng.randint(6, 20) * num_groups,
        "block_size": rng.choice([1, 2, 4]),
        "num_groups": num_groups,
        "depth": rng.choice([1, 2]),
        "max_num_seqs": rng.randint(1, 5),
        "max_num_batched_tokens": rng.randint(6, 40),
        "num_host_blocks": rng.choice([0, 0, 3, 12]),
        "keep_evicted": rng.random() < 0.7,
        "num_disk_slots": rng.randint(1, 30),
    }
    for _ in range(3):
        harness = Harness(disk=disk, **sizes)  # type: ignore[arg-type]
        _work(harness, rng)
        assert len(disk.slots) <= harness.num_disk_slots
        if rng.random() < 0.6:
            _close(harness)


def _work(harness: Harness, rng: random.Random) -> None:
    fault_rate = rng.choice([0.0, 0.0, 0.05])

    def fails(plan: StepPlan) -> None:
        if len(plan.row_ids) > 1 and rng.random() < fault_rate:
            raise RuntimeError("a fault that passes")

    harness.runner.fails = fails
    for _ in range(rng.randint(20, 100)):
        action = rng.random()
        if action < 0.2:
            _add_some(harness, rng)
        elif action < 0.22:
            harness.scheduler.reset_prefix_cache()
        elif action < 0.26 and harness.disk.slots:
            harness.disk.damage(rng.choice(sorted(harness.disk.slots)))
        else:
            harness.step()
    harness.run()
    for request in harness.requests:
        assert request.status is Status.LENGTH
        harness.check_answer(request)


def _add_some(harness: Harness, rng: random.Random) -> None:
    """Few distinct heads, so that prefixes are shared often."""
    head = [rng.choice([0, 1, 2]) * 100 + i for i in range(rng.choice([0, 4, 8, 12]))]
    prompt = [*head, *(rng.randrange(50) for _ in range(rng.randint(1, 5)))]
    max_tokens = rng.randint(1, 12)
    if len(prompt) + max_tokens <= harness.scheduler.door.max_tokens_per_sequence:
        harness.add(prompt, max_tokens)
