"""What the reuse policy learns: rates, worth, and whether recency would have done better."""

import random

import pytest

from octavo.core.eviction_statistics import ReuseStatistics, age_edges


def counted(reached: list[int], reused: list[int], edges: list[int]) -> ReuseStatistics:
    statistics = ReuseStatistics(edges, num_kinds=2, max_releases=10**9)
    for age, (num_reached, num_reused) in enumerate(zip(reached, reused, strict=True)):
        statistics.count_reached(0, age, num_reached)
        for _ in range(num_reused):
            statistics.count_reused(0, age)
    assert statistics.refresh(0)
    return statistics


@pytest.mark.parametrize("num_blocks", [1, 2, 20, 1953, 100_000])
def test_ages_grow_from_nothing_to_64_pools(num_blocks: int) -> None:
    edges = age_edges(num_blocks)
    assert edges[0] == 0
    assert edges == sorted(set(edges))
    assert edges[-1] >= 64 * num_blocks
    assert len(edges) == 22


def test_a_steady_rate_is_worth_the_same_at_every_age() -> None:
    """Half of all blocks are reused in each bucket of length 10: one hit in 2 releases, over 7.5 of time on average."""
    statistics = counted([100_000, 50_000, 25_000], [50_000, 25_000, 12_500], [0, 10, 20])
    assert statistics.worth[0][0] == pytest.approx(0.5 / 7.5, rel=0.01)
    assert statistics.worth[0][1] == pytest.approx(statistics.worth[0][0], rel=0.35)  # the last bucket is longer


def test_what_is_due_gains_worth_with_age_and_what_is_overdue_loses_it() -> None:
    reached = [10_000, 10_000, 10_000, 10_000, 1000, 1000, 1000]
    worth = counted(reached, [0, 0, 0, 9000, 0, 0, 0], [0, 10, 20, 30, 40, 50, 60]).worth[0]
    assert worth[0] < worth[1] < worth[2] < worth[3]
    assert worth[5] < worth[3] / 10


def test_worth_is_the_best_plan_of_all() -> None:
    """Against every plan "keep it from this age to that", tried one by one."""
    source = random.Random(3)
    edges = age_edges(100)
    lengths = [end - start for start, end in zip(edges, [*edges[1:], 2 * edges[-1]], strict=True)]
    for _ in range(50):
        hazards = [0.6 * source.random() ** 3 for _ in edges]
        worth = ReuseStatistics(edges, 1, 1)._indices(hazards)
        for age in range(len(edges)):
            survival, hits, time, best = 1.0, 0.0, 0.0, 0.0
            for hazard, length in zip(hazards[age:], lengths[age:], strict=True):
                hits += survival * hazard
                time += survival * (1 - hazard / 2) * length
                survival *= 1 - hazard
                best = max(best, hits / time)
            assert worth[age] == pytest.approx(best, rel=1e-5)


def test_a_kind_never_seen_leans_on_all_others() -> None:
    statistics = counted([10_000, 5_000, 2_500], [5_000, 2_500, 1_250], [0, 10, 20])
    statistics.count_reached(1, 0, 1)
    assert statistics.refresh(1)
    assert statistics.worth[1] == pytest.approx(statistics.worth[0], rel=0.1)


def test_worth_is_computed_anew_only_after_enough_has_happened() -> None:
    statistics = counted([1000, 1000], [0, 0], [0, 10])
    before = statistics.worth[0]
    statistics.count_reused(0, 0)
    assert not statistics.refresh(0)
    assert statistics.worth[0] is before
    for _ in range(200):
        statistics.count_reused(0, 0)
    assert statistics.refresh(0)
    assert statistics.worth[0][0] > before[0]


def test_the_past_fades() -> None:
    """A kind that used to return at once and no longer does loses its worth soon after."""
    statistics = ReuseStatistics([0, 10], num_kinds=1, max_releases=1000)
    for _ in range(1000):
        statistics.count_reached(0, 0, 1)
        statistics.count_reused(0, 0)
    assert statistics.refresh(0)
    first = statistics.worth[0][0]
    for _ in range(4000):
        statistics.count_reached(0, 0, 1)
        statistics.count_reached(0, 1, 1)
        statistics.refresh(0)
    assert statistics.worth[0][0] < first / 10
