"""Policy "priority": the lowest number first, with ageing; who is later in rank gives way, and nobody starves."""

import pytest

from octavo.core.errors import ConfigurationError, InvalidRequestError
from octavo.core.request import Request, Status
from octavo.core.scheduler_types import PolicySettings, SkipBounds
from tests.support.fake_runner import expected_output
from tests.support.naive_beam_search import Search
from tests.support.scheduling import Harness

AGING = 10.0
DEPTHS = pytest.mark.parametrize("depth", [1, 2])


def _harness(**sizes: object) -> Harness:
    settings = {"policy": PolicySettings("priority", AGING), "prefix_caching": False} | sizes
    return Harness(**settings)  # type: ignore[arg-type]


def _add(harness: Harness, priority: int, num_tokens: int = 3, max_tokens: int = 2) -> Request:
    harness.standing = lambda number: {"priority": priority}
    first = 10 * len(harness.requests)
    return harness.add(list(range(first, first + num_tokens)), max_tokens)


def _order_of_ends(harness: Harness) -> list[Request]:
    ended: list[Request] = []
    while harness.scheduler.has_work:
        harness.step()
        ended += [request for request in harness.requests if request.is_finished and request not in ended]
    return ended


def test_the_lowest_number_goes_first_and_of_equals_who_came_first() -> None:
    harness = _harness(max_num_seqs=1, max_num_batched_tokens=8)
    one, two, best, other = [_add(harness, priority) for priority in (5, 2, -1, 2)]
    assert list(harness.scheduler.waiting) == [best, two, other, one]
    assert _order_of_ends(harness) == [best, two, other, one]


def test_without_priorities_it_is_first_come_first_served() -> None:
    harness = _harness(max_num_seqs=1, max_num_batched_tokens=8)
    requests = [_add(harness, 0) for _ in range(4)]
    assert _order_of_ends(harness) == requests


@pytest.mark.parametrize(("seconds", "is_passed"), [(29.9, True), (30.1, False)])
def test_after_so_long_a_request_has_passed_those_of_better_levels(seconds: float, is_passed: bool) -> None:
    """Three levels worse, it goes before all that come more than three times the ageing after it."""
    harness = _harness(max_num_seqs=1, max_num_batched_tokens=8)
    harness.scheduler.tell_time(1000.0)
    old = _add(harness, 3)
    harness.scheduler.tell_time(1000.0 + seconds)
    new = _add(harness, 0)
    assert (list(harness.scheduler.waiting) == [new, old]) is is_passed
    harness.run()


@pytest.mark.parametrize(("priority", "is_held_up"), [(0, False), (1, True), (2, True)])
def test_a_better_request_that_fits_now_is_not_held_up_for_what_worse_ones_may_need(
    priority: int, is_held_up: bool
) -> None:
    """The first will grow to all 24 blocks, as far as anybody knows, and gives way if it has to."""
    harness = _harness(num_blocks=24, max_num_batched_tokens=128, admission_quantile=0.99)
    for _ in range(400):
        harness.scheduler.population.output_lengths.note(80, is_end=True, tenant="default")
    first = _add(harness, 1, num_tokens=40, max_tokens=56)
    harness.step()
    second = _add(harness, priority, num_tokens=32, max_tokens=60)
    harness.step()
    harness.step()
    assert first.status is Status.RUNNING
    assert (second.status is Status.WAITING) == is_held_up
    harness.run()
    for request in (first, second):
        harness.check_answer(request)


def test_nobody_starves_in_a_stream_of_better_ones() -> None:
    """Better requests come faster than they can be served; a worse one is served within its three levels' time."""
    harness = _harness(max_num_seqs=1, max_num_batched_tokens=8)
    harness.scheduler.tell_time(0.0)
    worse = _add(harness, 3)
    for second in range(60):
        harness.scheduler.tell_time(second)
        _add(harness, 0, max_tokens=3)
        for _ in range(4):
            harness.step()
        if worse.is_finished:
            break
    num_before = sum(request.is_finished for request in harness.requests) - 1
    assert worse.is_finished
    assert num_before <= 31, "only those that came within 30 seconds of it"
    harness.run()


def test_a_clock_that_is_set_back_lets_nobody_in_front() -> None:
    harness = _harness(max_num_seqs=1, max_num_batched_tokens=8)
    harness.scheduler.tell_time(1000.0)
    first = _add(harness, 0)
    harness.scheduler.tell_time(10.0)
    second = _add(harness, 0)
    assert list(harness.scheduler.waiting) == [first, second]
    harness.run()


@DEPTHS
def test_a_better_request_that_lacks_memory_gets_that_of_worse_ones(depth: int) -> None:
    harness = _harness(num_blocks=12, depth=depth)
    worse = [_add(harness, 1, num_tokens=12, max_tokens=20) for _ in range(3)]
    for _ in range(4):
        harness.step()
    assert all(request.status is Status.RUNNING for request in worse)
    better = _add(harness, 0, num_tokens=30, max_tokens=4)
    for _ in range(2 + depth):
        harness.step()
    assert better.status is Status.RUNNING
    assert worse[0].num_preemptions <= worse[2].num_preemptions
    assert sum(request.num_preemptions for request in worse) >= 2
    assert _order_of_ends(harness)[0] is better
    for request in harness.requests:
        harness.check_answer(request)


def test_requests_of_its_own_level_or_old_enough_do_not_give_way() -> None:
    harness = _harness(num_blocks=12, head_skips=SkipBounds(max_skips=0))
    old = _add(harness, 1, num_tokens=28, max_tokens=6)
    harness.step()
    harness.scheduler.tell_time(AGING + 1)
    better = _add(harness, 0, num_tokens=30, max_tokens=4)
    harness.step()
    assert (old.status, better.status) == (Status.RUNNING, Status.WAITING)
    assert _order_of_ends(harness) == [old, better]
    assert harness.scheduler.counters.num_preemptions == 0


def test_whoever_is_later_in_rank_gives_way_when_blocks_run_out() -> None:
    """The better request came last, and grows at the cost of the one that came first."""
    harness = _harness(num_blocks=8)
    worse = _add(harness, 1, num_tokens=10, max_tokens=20)
    harness.step()
    better = _add(harness, 0, num_tokens=10, max_tokens=20)
    harness.run()
    assert worse.num_preemptions >= 1
    assert better.num_preemptions == 0
    for request in (worse, better):
        prompt = request.token_ids[: request.num_prompt_tokens]
        assert request.token_ids[request.num_prompt_tokens :] == expected_output(prompt, 20)


def test_choices_and_beams_have_the_standing_of_their_request() -> None:
    harness = _harness(max_num_seqs=2, max_num_batched_tokens=8)
    other = _add(harness, 1)
    harness.standing = lambda number: {"priority": -4}
    members = harness.add_choices([1, 2, 3], 3, 4) + harness.add_beams([1, 2, 3], Search(width=2, max_tokens=3))
    assert {member.priority for member in members} == {-4}
    assert max(member.rank for member in members) < other.rank
    harness.run()


@pytest.mark.parametrize("priority", [1, -1, 2**63, -(2**63) - 1, True, 1.5])
def test_a_priority_under_another_policy_or_that_is_none_is_refused(priority: object) -> None:
    harness = Harness()
    harness.standing = lambda number: {"priority": priority}
    with pytest.raises(InvalidRequestError, match="priority") as refused:
        harness.add([1], 1)
    assert refused.value.param == "priority"


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_ageing_is_a_time(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="priority_aging_seconds"):
        PolicySettings("priority", seconds)
