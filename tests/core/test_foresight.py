"""Admission that looks ahead: the predicted peak, the slack, and answers that do not depend on any of it."""

import random

import pytest

from octavo.core.errors import ConfigurationError
from octavo.core.foresight import Foresight
from octavo.core.request import Request, Status
from octavo.core.scheduler_types import SchedulerConfig
from tests.support.scheduling import Harness


def _with_one_running(quantile: float, num_tokens: int, lengths: list[int]) -> Harness:
    """A pool of 24 blocks of 4, a request with ``num_tokens`` of which each answer that was seen had one of
    ``lengths``."""
    harness = Harness(num_blocks=24, max_num_batched_tokens=128, prefix_caching=False, admission_quantile=quantile)
    for length in lengths:
        harness.scheduler.population.output_lengths.note(length, is_end=True, tenant="default")
    harness.add(list(range(num_tokens)), 90 - num_tokens)
    harness.step()
    return harness


@pytest.mark.parametrize("quantile", [-0.1, 1.0, float("nan")])
def test_a_quantile_is_a_probability(quantile: float) -> None:
    with pytest.raises(ConfigurationError, match="admission_quantile"):
        SchedulerConfig(admission_quantile=quantile)


@pytest.mark.parametrize(
    ("quantile", "lengths", "admitted"),
    [
        (0.0, [80] * 400, True),  # nobody looks ahead: 10 and 8 of 24 blocks fit now
        (0.9, [80] * 400, False),  # both will grow to 20 blocks and more
        (0.9, [2] * 400, True),  # both end before they grow
    ],
)
def test_a_request_waits_where_the_peak_would_not_fit(quantile: float, lengths: list[int], admitted: bool) -> None:
    harness = _with_one_running(quantile, 40, lengths)
    second = harness.add(list(range(100, 132)), 60)
    harness.step()
    harness.step()
    assert (second.status is Status.RUNNING) == admitted
    harness.run()
    assert second.status is Status.LENGTH, "it comes in, once the first has ended"


def test_max_tokens_bounds_what_is_to_come() -> None:
    """Answers are long as a rule, but these two may not be."""
    harness = Harness(num_blocks=24, max_num_batched_tokens=128, prefix_caching=False, admission_quantile=0.99)
    for _ in range(400):
        harness.scheduler.population.output_lengths.note(80, is_end=True, tenant="default")
    harness.add(list(range(40)), 7)
    harness.step()
    second = harness.add(list(range(100, 132)), 3)
    harness.step()
    harness.step()
    assert second.status is Status.RUNNING


def test_a_request_alone_is_never_held_up() -> None:
    harness = Harness(num_blocks=24, max_num_batched_tokens=128, prefix_caching=False, admission_quantile=0.99)
    request = harness.add(list(range(80)), 16)
    harness.step()
    assert request.status is Status.RUNNING


def test_what_others_share_does_not_come_free_when_one_ends() -> None:
    """Two sequences of eight blocks. Where they share six of them, two come free with each."""

    def foresight(harness: Harness) -> Foresight:
        return Foresight(0.5, harness.scheduler.population)

    prompt = list(range(24))
    for shares in (False, True):
        harness = Harness(num_blocks=40, max_num_batched_tokens=128, prefix_caching=True)
        harness.add([*prompt, *range(50, 57)], 9)
        harness.step()
        harness.add([*(prompt if shares else range(200, 224)), *range(60, 67)], 9)
        harness.step()
        harness.step()
        held = [foresight(harness)._num_held(request) for request in harness.scheduler.running]
        assert held == ([2, 2] if shares else [8, 8])


def test_the_slack_is_spent_by_admissions_and_found_again() -> None:
    """While all could run to their ends at once nobody is looked at."""
    harness = Harness(num_blocks=64, max_num_batched_tokens=128, prefix_caching=False, admission_quantile=0.99)
    for number in range(4):
        harness.add([number * 10 + i for i in range(8)], 24)  # 8 blocks each at most
        harness.step()
    foresight = harness.scheduler._planner.admission._looking_ahead._foresight
    assert 0 < foresight._slack <= 64 - 4 * 8 + 8
    harness.run()


@pytest.mark.parametrize("depth", [1, 2])
def test_answers_do_not_depend_on_it_and_preemptions_get_rarer(depth: int) -> None:
    preemptions = {}
    for quantile in (0.0, 0.9, 0.99):
        source = random.Random(7)
        harness = Harness(num_blocks=60, depth=depth, max_num_batched_tokens=64, admission_quantile=quantile)
        requests: list[Request] = []
        for _ in range(120):
            prompt = [source.randrange(1000) for _ in range(source.randint(1, 40))]
            requests.append(harness.add(prompt, source.randint(1, 60)))
            for _ in range(source.randrange(6)):
                harness.step()
        harness.run()
        for request in requests:
            harness.check_answer(request)
        preemptions[quantile] = harness.scheduler.counters.num_preemptions
    assert preemptions[0.0] > 20
    assert preemptions[0.99] < preemptions[0.0] * 0.9


@pytest.mark.parametrize(("num_tokens", "growing"), [(4, 3), (8, 2), (20, 1)])
def test_a_window_that_is_full_grows_no_more(num_tokens: int, growing: int) -> None:
    harness = Harness(num_blocks=60, num_groups=3, windows=(None, 8, 20))
    assert Foresight(0.9, harness.scheduler.population)._num_growing_groups(num_tokens) == growing
