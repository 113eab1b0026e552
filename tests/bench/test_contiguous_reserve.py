"""Serving from contiguous memory: hand-made cases."""

import pytest

from octavo.bench.contiguous_reserve import ContiguousReserve
from octavo.bench.memory_system import Sample, measure
from octavo.bench.traces import Lengths
from octavo.core.errors import ConfigurationError
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.sim.baselines.allocators import Buddy, FirstFit
from octavo.sim.baselines.memory import Memory
from octavo.sim.baselines.reservation import Reservation, reserve_exactly, reserve_maximum, reserve_power_of_two


def test_maximum_by_hand() -> None:
    """16 slots, pieces of 6: two at once. A prompt of 4 that draws 2 tokens writes 5."""
    memory = Memory(num_blocks=1, max_num_batched_tokens=6)
    system = ContiguousReserve(memory, [Lengths(4, 2), Lengths(4, 2), Lengths(1, 1)], reserve_maximum(6))
    assert list(system.run()) == [
        Sample(filled_slots=6, held_slots=12, resident=2, waiting=1, blocked=True),  # 4 and 2 written
        Sample(filled_slots=9, held_slots=12, resident=2, waiting=1, blocked=True),  # 5 and 4: the first one ends
        Sample(filled_slots=6, held_slots=12, resident=2, waiting=0, blocked=False),  # 5 and 1
    ]


def test_filled_share_by_hand() -> None:
    """16 slots, all-knowing: pieces of 7 and 8, and no room for a third; (6 + 7) / 16 while it waits."""
    memory = Memory(num_blocks=1, max_num_batched_tokens=64)
    figures = measure(ContiguousReserve(memory, [Lengths(6, 1), Lengths(7, 1), Lengths(7, 1)], EXACT), memory)
    assert figures.filled_share == figures.filled_share_once_full == 13 / 16
    assert figures.held_share == 15 / 16
    assert (figures.resident, figures.num_steps, figures.num_steps_waiting) == (2, 2, 1)


EXACT = reserve_exactly(FirstFit)


@pytest.mark.parametrize(
    ("reservation", "slots", "held"),
    [
        (reserve_maximum(64), 64, 64),
        (reserve_power_of_two(64), 5 + 16, 32),  # 11 tokens of output: 16 places; a piece of 32
        (reserve_power_of_two(18), 18, 32),  # no more than the longest sequence there can be
        (EXACT, 16, 16),
        (reserve_exactly(Buddy), 16, 16),
    ],
)
def test_what_is_reserved(reservation: Reservation, slots: int, held: int) -> None:
    request = Lengths(5, 11)
    asked = Request("", [0] * request.prompt, SamplingParams(), max_tokens=request.output)
    assert reservation.slots_for(asked) == slots
    (first, *_) = ContiguousReserve(Memory(num_blocks=4), [request], reservation).run()
    assert first.held_slots == held


def test_holes_keep_requests_out() -> None:
    """16 slots: 5, 3, 5 and 3. When the two of 5 have ended, ten slots are free, but eight lie nowhere in a row."""
    memory = Memory(num_blocks=1)
    system = ContiguousReserve(
        memory, [Lengths(4, 1), Lengths(1, 2), Lengths(4, 1), Lengths(1, 2), Lengths(7, 1)], EXACT
    )
    second = list(system.run())[1]
    assert (second.held_slots, second.resident, second.waiting, second.blocked) == (6, 2, 1, True)


def test_the_first_in_line_keeps_all_others_waiting() -> None:
    memory = Memory(num_blocks=1)
    system = ContiguousReserve(memory, [Lengths(8, 2), Lengths(8, 2), Lengths(1, 1)], EXACT)
    assert [sample.resident for sample in system.run()] == [1, 1, 2, 1]


def test_what_never_fits_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"16 slots have no piece of 17 .*\(all-knowing, first fit\)"):
        ContiguousReserve(Memory(num_blocks=1), [Lengths(1, 1), Lengths(16, 1)], EXACT)
