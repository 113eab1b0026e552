"""Random schedules of all mechanisms together: windows, swapping, host and disk tiers, pins, retention, forks, beams,
salts, follow-ups, skipping, policies, speculation, faults, aborts, preemption and resets, at one and two steps in
flight. Invariants and the sanitizer after every event; every request ends with the answer it has alone; every block
comes back."""

import pytest

from tests.support.schedules import Schedule

NUM_SEEDS_ALWAYS = 80


@pytest.mark.parametrize(
    "seed",
    [
        *range(NUM_SEEDS_ALWAYS),
        *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(NUM_SEEDS_ALWAYS, 1500)),
    ],
)
def test_all_mechanisms_together(seed: int) -> None:
    schedule = Schedule(seed)
    schedule.run()
    schedule.finish()
