"""What the figures of the pool say, against what its tables hold; and what they say a new request could get, against
what one that comes gets."""

import copy
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest

from octavo.core.block_states import BlockStates, SlotUse, slot_use
from octavo.core.errors import InvalidRequestError
from octavo.core.pin_types import PinWish
from octavo.core.scheduler import Scheduler
from octavo.core.step import NO_BLOCK
from octavo.engine.messages import EngineStats
from octavo.engine.snapshot import Endings, Swaps, take_snapshot
from tests.support.schedules import Schedule
from tests.support.scheduling import Harness


def snapshot(scheduler: Scheduler) -> EngineStats:
    return take_snapshot(scheduler, Swaps(1), Endings(), None)


def counted(harness: Harness) -> tuple[BlockStates, SlotUse]:
    """Block by block."""
    kv, size = harness.kv, harness.block_size
    tables: Counter[int] = Counter()
    filled: Counter[int] = Counter()
    for request in harness.requests:
        for group in request.tables.groups if request.tables else ():
            for index, block_id in enumerate(group):
                if block_id == NO_BLOCK:
                    continue
                tables[block_id] += 1
                fill = min(size, max(0, request.num_landed_tokens - index * size))
                filled[block_id] = max(filled[block_id], fill)
    states: Counter[str] = Counter()
    for block_id, ref_count in enumerate(kv.pool.ref_counts):
        if ref_count == 0:
            states["cached" if kv.pool.names[block_id] is not None else "free"] += 1
        elif block_id in kv.keeping.pins.references and not tables[block_id]:
            states["pinned"] += 1
        else:
            states["active"] += 1
    shared = sum(count > 1 for count in tables.values())
    free, cached, pinned, active = (states[name] for name in ("free", "cached", "pinned", "active"))
    saved = tables.total() - len(tables)
    return BlockStates(free, cached, pinned, active, shared), SlotUse(len(tables) * size, filled.total(), saved)


def watched(schedule: Schedule, look: Callable[[], None]) -> None:
    """Look after every event."""
    harness, check = schedule.harness, schedule.harness.check

    def check_and_look() -> None:
        check()
        look()

    harness.check = check_and_look  # type: ignore[method-assign]
    schedule.run()
    schedule.finish()


@pytest.mark.parametrize("seed", range(20))
def test_they_add_up_after_every_event_and_are_what_is_there(seed: int) -> None:
    schedule = Schedule(seed)
    harness = schedule.harness

    def look() -> None:
        states, use = harness.kv.block_states(), slot_use(harness.scheduler.with_blocks, harness.block_size)
        assert (states, use) == counted(harness)
        stats = snapshot(harness.scheduler)
        by_state = stats.num_free_blocks, stats.num_cached_blocks, stats.num_idle_pinned_blocks, stats.num_active_blocks
        assert sum(by_state) == stats.num_blocks == harness.num_blocks
        assert 0 <= stats.num_shared_blocks <= stats.num_active_blocks
        assert 0 <= stats.num_allocatable_blocks <= stats.num_free_blocks + stats.num_cached_blocks
        assert stats.num_idle_pinned_blocks <= stats.num_pinned_blocks <= stats.max_pinned_blocks
        in_host = harness.kv.host.pool.num_blocks - stats.num_host_cached_blocks - stats.num_swapped_blocks
        assert in_host >= 0

    watched(schedule, look)


def test_each_state_is_seen() -> None:
    """Else the test above would say little."""
    most: Counter[str] = Counter()
    for seed in range(30):
        schedule = Schedule(seed)

        def look(harness: Harness = schedule.harness) -> None:
            for name, count in harness.kv.block_states()._asdict().items():
                most[name] = max(most[name], count)
            use = slot_use(harness.scheduler.with_blocks, harness.block_size)
            most["saved"] = max(most["saved"], use.num_saved_blocks)
            most["empty"] = max(most["empty"], use.num_slots - use.num_filled)

        watched(schedule, look)
    assert min(most[name] for name in (*BlockStates._fields, "saved", "empty")) >= 3


@pytest.mark.parametrize("seed", range(10))
def test_to_look_changes_nothing(seed: int) -> None:
    """Every plan is the one that is made when nobody looks."""
    plans: list[list[str]] = []
    for looks in (False, True):
        schedule = Schedule(seed)
        scheduler, seen = schedule.harness.scheduler, list[str]()
        schedule_step = scheduler.schedule

        def plan(call: Callable = schedule_step, seen: list[str] = seen) -> object:  # type: ignore[type-arg]
            made = call()
            seen.append(repr(made))
            return made

        scheduler.schedule = plan  # type: ignore[method-assign, assignment]
        watched(schedule, (lambda scheduler=scheduler: snapshot(scheduler)) if looks else lambda: None)  # type: ignore[misc]
        plans.append(seen)
    assert plans[0] == plans[1]


def busy(seed: int) -> tuple[Harness, random.Random]:
    rng = random.Random(seed)
    harness = Harness(
        num_blocks=rng.randint(12, 150),
        block_size=rng.choice([1, 4, 8]),
        num_groups=rng.choice([1, 1, 2]),
        max_num_seqs=rng.randint(2, 12),
        max_num_batched_tokens=4096,
        max_model_len=rng.choice([64, 300, 4096]),
        admission_quantile=rng.choice([0.0, 0.0, 0.5, 0.9, 0.997]),
    )
    return harness, rng


def is_admitted(harness: Harness, num_tokens: int) -> bool:
    """Would a prompt of so many new tokens, of a request that sets no max_tokens, start in the next step? It is tried
    on a copy."""
    tried = copy.deepcopy(harness)
    longest = tried.scheduler.door.max_tokens_per_sequence
    request = tried.add([place % 900 for place in range(num_tokens)], longest - num_tokens, salt="new")
    tried.scheduler.schedule()
    return request.tables is not None


@pytest.mark.parametrize("seed", range(30))
def test_the_longest_prompt_that_is_told_is_admitted_and_no_longer_one(seed: int) -> None:
    harness, rng = busy(seed)
    told: set[int] = set()
    for _ in range(30):
        if rng.random() < 0.5:
            prompt = [rng.randrange(3) for _ in range(rng.randint(1, 20))]
            pins = (PinWish(len(prompt), None, None),) if rng.random() < 0.2 else ()
            # What becomes of a fork cannot be predicted in the step in which it begins.
            num_choices = 1 if harness.admission_quantile else rng.choice([1, 1, 3])
            with suppress(InvalidRequestError):
                harness.add_choices(prompt, num_choices, rng.randint(1, 40), kept={"pins": pins})
        harness.step()
        harness.step()
        if harness.pending or harness.scheduler.num_waiting:
            continue  # who stands in line goes first
        stats = snapshot(harness.scheduler)
        longest = harness.scheduler.door.max_tokens_per_sequence
        if stats.max_prompt_tokens:
            assert is_admitted(harness, stats.max_prompt_tokens)
        if stats.max_prompt_tokens < longest - 1:
            assert not is_admitted(harness, stats.max_prompt_tokens + 1)
        told.add(stats.max_prompt_tokens)
        blocks = harness.kv.num_blocks_for(stats.max_prompt_tokens)
        assert blocks <= stats.num_allocatable_blocks, "a prompt takes no block that cannot be had"
        if stats.num_allocatable_blocks == 0:
            assert stats.max_prompt_tokens == 0
    assert told
