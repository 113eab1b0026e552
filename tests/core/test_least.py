"""The smallest of many keys, without a look at all of them."""

import cProfile
from random import Random

import pytest

from octavo.core.least import Least
from octavo.core.request import Request, Status
from octavo.core.scheduler_types import PolicySettings
from tests.support.scheduling import Harness


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_smallest_whatever_happens(seed: int) -> None:
    """Names come and go, keys grow without a word and shrink with one; the heap stays as small as what counts."""
    random, keys = Random(seed), dict[str, tuple[float, int]]()
    least: Least[tuple[float, int]] = Least(keys.get)
    for turn in range(5000):
        name, kind = str(random.randrange(40)), random.random()
        if kind < 0.4 and name in keys:
            keys[name] = (keys[name][0] + random.choice([0, 1, 5]), keys[name][1] + 100)
        elif kind < 0.7:
            keys[name] = (min(keys.get(name, (9e9, 0))[0], random.randrange(turn + 1)), turn)
            least.note(name, keys[name])
        else:
            keys.pop(name, None)
        if random.random() < 0.5:
            assert least.first() == min(keys, key=keys.__getitem__, default=None)
    assert len(least._heap) <= 64 + 2 * 40


def count_calls(profile: cProfile.Profile) -> int:
    return sum(entry.callcount for entry in profile.getstats())


def fair(num_tenants: int) -> Harness:
    harness = Harness(policy=PolicySettings("fair"), prefix_caching=False, max_num_seqs=1, max_num_batched_tokens=8)
    harness.standing = lambda number: {"tenant": f"t{number % num_tenants}"}
    for number in range(2 * num_tenants):
        harness.add([number % 1000] * 3, 2)
    return harness


def test_an_admission_costs_the_same_among_many_tenants() -> None:
    """Of 1,000 as of 10, each with requests in line: what a step calls does not follow their number."""
    counts = []
    for num_tenants in (10, 1000):
        harness, profile = fair(num_tenants), cProfile.Profile()
        for _ in range(12):
            plan = profile.runcall(harness.scheduler.schedule)
            harness.scheduler.update(harness.sanitizer.submit(plan).result())
        assert sum(request.status is not Status.WAITING for request in harness.requests) >= 4
        counts.append(count_calls(profile))
    assert counts[1] < 1.1 * counts[0]


def test_an_arrival_costs_the_same_among_many_tenants() -> None:
    counts = []
    for num_tenants in (10, 900):
        harness = fair(num_tenants)
        harness.step()
        harness.standing = lambda number: {"tenant": f"new{number}"}
        profile = cProfile.Profile()
        for _ in range(10):
            profile.runcall(harness.add, [1, 2], 2)
        counts.append(count_calls(profile))
    assert counts[1] < 1.1 * counts[0]


def test_who_goes_next_is_who_has_least_of_all() -> None:
    """Beside a look at every line, in a long run of many tenants under pressure."""
    random = Random(5)
    harness = Harness(policy=PolicySettings("fair"), num_blocks=24, max_num_seqs=4, max_num_batched_tokens=16)
    harness.standing = lambda number: {"tenant": f"t{random.randrange(12)}"}
    waiting = harness.scheduler.waiting
    for _ in range(300):
        if random.random() < 0.7:
            harness.add(random.choices(range(20), k=random.randint(1, 24)), random.randint(1, 12))
        first = waiting.peek()
        expected: Request | None = next(iter(waiting), None)
        assert first is expected
        harness.step()
