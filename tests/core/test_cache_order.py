"""Cache-aware order: where the cache is full, of equals those go first whose prefix is in it; and what several requests
begin with is computed once, in chunks too."""

import random

import pytest

from octavo.core.lookups import Lookups
from octavo.core.request import Request, Status
from octavo.core.scheduler_types import PolicySettings, SkipBounds
from tests.support.scheduling import Harness

HEADS = [[100 * head + i for i in range(60)] for head in range(3)]
"""Of 15 blocks each: the pool below holds two of them beside what is added."""


def _harness(max_skips: int = 32, **sizes: object) -> Harness:
    values = {"num_blocks": 36, "max_num_seqs": 1, "max_num_batched_tokens": 80} | sizes
    return Harness(head_skips=SkipBounds(max_skips=max_skips), **values)  # type: ignore[arg-type]


def _add(harness: Harness, head: int) -> Request:
    return harness.add([*HEADS[head], 900, len(harness.requests)], 2)


def _num_hits(max_skips: int) -> int:
    """Tokens found in the cache, of thirty requests that begin in one of three ways, by turns."""
    harness = _harness(max_skips)
    for number in range(30):
        _add(harness, number % 3)
    harness.run()
    for request in harness.requests:
        harness.check_answer(request)
    return harness.scheduler.counters.prefix_hits


def test_requests_that_begin_alike_follow_each_other_and_find_what_is_cached() -> None:
    """In order of arrival most of each prefix is forgotten before it comes again."""
    assert _num_hits(max_skips=0) < 0.25 * 30 * 60
    assert _num_hits(max_skips=32) > 0.8 * 30 * 60


def test_nobody_is_passed_more_often_than_is_stated() -> None:
    harness = _harness(max_skips=2)
    _add(harness, 0)
    harness.step()
    other = _add(harness, 1)
    same = [_add(harness, 0) for _ in range(5)]
    harness.run()
    assert other.num_skips <= 2
    assert [request.num_skips for request in same] == [0] * 5


def test_where_blocks_are_empty_it_is_first_come_first_served() -> None:
    harness = _harness(num_blocks=200)
    for number in range(12):
        _add(harness, number % 3)
    harness.run()
    assert all(request.num_skips == 0 for request in harness.requests)


def _starts(harness: Harness) -> list[Request]:
    seen: list[Request] = []
    while harness.scheduler.has_work:
        harness.step()
        seen += [each for each in harness.requests if each not in seen and each.status is not Status.WAITING]
    return seen


def _with_standings(policy: PolicySettings, field: str, values: list[object]) -> Harness:
    """Each request added has the next of these values; the first is run, so that its prefix is cached."""
    harness = _harness(policy=policy, num_blocks=30)
    harness.standing = lambda number: {field: values[number]}
    _add(harness, 0)
    harness.run()
    return harness


def test_one_of_a_worse_priority_stays_behind_whatever_is_cached_of_it() -> None:
    harness = _with_standings(PolicySettings("priority", 1000.0), "priority", [0, 0, 1, 0])
    filler, worse, equal = _add(harness, 1), _add(harness, 0), _add(harness, 2)
    assert _starts(harness)[1:] == [filler, equal, worse]
    assert worse.num_skips == filler.num_skips == 0


def test_only_those_of_the_same_tenant_are_passed() -> None:
    harness = _with_standings(PolicySettings("fair"), "tenant", ["c", "a", "b", "a"])
    passed, other, cached = _add(harness, 1), _add(harness, 0), _add(harness, 0)
    assert _starts(harness)[1:] == [cached, other, passed]
    assert (passed.num_skips, other.num_skips) == (1, 0)


@pytest.mark.parametrize("seed", range(20))
def test_answers_are_those_without(seed: int) -> None:
    rng = random.Random(seed)
    answers = []
    order = [rng.randrange(3) for _ in range(12)]
    for max_skips in (0, 3, 32):
        harness = _harness(max_skips, depth=1 + seed % 2, max_num_seqs=1 + seed % 3)
        for head in order:
            _add(harness, head)
        harness.run()
        answers.append([request.token_ids for request in harness.requests])
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("seed", range(20))
def test_who_cannot_have_more_cached_is_not_looked_up_and_nothing_else_changes(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The one look before the whole lookup, against none: all steps are the same."""
    rng = random.Random(seed)
    order = [(rng.randrange(4), rng.randrange(1, 60)) for _ in range(30)]
    plans = []
    for may_find in (Lookups.may_find, lambda *_: True):
        monkeypatch.setattr(Lookups, "may_find", may_find)
        harness = _harness(
            max_num_seqs=1 + seed % 3,
            num_blocks=90 + seed % 7,
            num_host_blocks=16 * (seed % 2),
            keep_evicted=seed % 2 == 1,
            num_groups=2,
            windows=[(), (None, 8), (8, None), (8, 16)][seed % 4],
        )
        for head, length in order:
            harness.add([*[100 * head + i for i in range(length)], len(harness.requests)], 2)
        harness.run()
        plans.append(harness.runner.plans)
    assert plans[0] == plans[1]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_others", [1, 3])
def test_what_several_begin_with_is_computed_once_in_chunks_too(depth: int, num_others: int) -> None:
    """A prompt of eight chunks; those that come with it, and one that comes half way, wait for each block."""
    harness = Harness(num_blocks=100, depth=depth, max_num_batched_tokens=12)
    prompt = list(range(96))
    for number in range(num_others):
        harness.add([*prompt, 500 + number], 2)
    for _ in range(8):
        harness.step()
    harness.add([*prompt, 600], 2)
    harness.run()
    num_computed = sum(plan.num_tokens for plan in harness.runner.plans)
    assert num_computed == 96 + 2 * (num_others + 1), (
        "the prompt once; of each request its own token, and the first drawn"
    )
    for request in harness.requests:
        harness.check_answer(request)
