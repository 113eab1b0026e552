"""The comparison of memory: invariants of its figures, and hand-made cases."""

import random

import pytest

from octavo.bench.memory import ContiguousReserve, Memory, Paged, Sample, System, measure
from octavo.bench.traces import Lengths, draw_lengths

MEMORY = Memory(num_blocks=600, max_num_batched_tokens=512)


@pytest.fixture(scope="module")
def lengths() -> list[Lengths]:
    return draw_lengths(20, seed=0)


def both(memory: Memory, lengths: list[Lengths]) -> tuple[System, System]:
    return Paged(memory, lengths, random.Random(0)), ContiguousReserve(memory, lengths)


def test_paged_memory_is_fuller_and_sooner_done(lengths: list[Lengths]) -> None:
    octavo, reserve = (measure(system, MEMORY) for system in both(MEMORY, lengths))
    for figures in (octavo, reserve):
        assert figures.filled_share_once_full is not None
        assert figures.held_share is not None
        assert 0 < figures.filled_share_once_full <= figures.held_share <= 1
        assert 0 < figures.num_steps_short_of_memory <= figures.num_steps_waiting <= figures.num_steps
    assert octavo.filled_share_once_full > 2 * reserve.filled_share_once_full  # type: ignore[operator]
    assert octavo.resident > reserve.resident  # type: ignore[operator]
    assert octavo.num_steps < reserve.num_steps


def test_a_run_is_the_same_each_time(lengths: list[Lengths]) -> None:
    first, second = (measure(Paged(MEMORY, lengths, random.Random(0)), MEMORY) for _ in range(2))
    assert first == second


def test_every_sample_adds_up(lengths: list[Lengths]) -> None:
    for system in both(MEMORY, lengths):
        samples = list(system.run())
        assert samples[0].filled_slots == MEMORY.max_num_batched_tokens, "the first step fills what it computes"
        for sample in samples:
            assert 0 <= sample.filled_slots <= sample.held_slots <= MEMORY.num_slots
            assert 0 < sample.resident <= len(lengths) - sample.waiting
        assert samples[-1].waiting == 0


def test_no_figure_where_no_request_waits() -> None:
    figures = measure(Paged(MEMORY, [Lengths(10, 5)], random.Random(0)), MEMORY)
    assert (figures.filled_share_once_full, figures.filled_share, figures.num_steps_waiting) == (None, None, 0)
    assert figures.num_steps == 5


def test_reserve_by_hand() -> None:
    """16 slots, pieces of 6: two at once. A prompt of 4 that draws 2 tokens writes 5."""
    memory = Memory(num_blocks=1, max_num_batched_tokens=6)
    system = ContiguousReserve(memory, [Lengths(4, 2), Lengths(4, 2), Lengths(1, 1)])
    assert list(system.run()) == [
        Sample(filled_slots=6, held_slots=12, resident=2, waiting=1, blocked=True),  # 4 and 2 written
        Sample(filled_slots=9, held_slots=12, resident=2, waiting=1, blocked=True),  # 5 and 4: the first one ends
        Sample(filled_slots=6, held_slots=12, resident=2, waiting=0, blocked=False),  # 5 and 1
    ]


def test_shared_slots_count_once() -> None:
    """The second prompt starts with the first one's: its shared blocks hold their tokens once."""

    class Same(random.Random):
        def random(self) -> float:
            return 0.5

    memory = Memory(num_blocks=64, max_num_batched_tokens=256)
    system = Paged(memory, [Lengths(48, 40), Lengths(48, 40)], Same())
    fullest = max(sample.filled_slots for sample in system.run())
    assert fullest <= 87 // 16 * 16 + 2 * 15  # 87 tokens are written of each: full blocks once, two tails
