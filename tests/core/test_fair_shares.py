"""Policy "fair": the tenant that has got least goes next, so that what two backlogged ones get differs by a bound."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.errors import ConfigurationError, InvalidRequestError
from octavo.core.request import Request, Status
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler_types import PolicySettings, SkipBounds
from octavo.core.tenants import MAX_NAMED_TENANTS, MAX_TENANTS, OTHER_TENANTS, Tenants
from tests.support.scheduling import Harness

INPUT, OUTPUT = 1.0, 2.0


def _harness(slack: float = 0.0, **sizes: object) -> Harness:
    values = {"policy": PolicySettings("fair", fair_slack=slack), "prefix_caching": False} | sizes
    return Harness(**values)  # type: ignore[arg-type]


def _add(harness: Harness, tenant: str, num_tokens: int = 4, max_tokens: int = 4) -> Request:
    harness.standing = lambda number: {"tenant": tenant}
    first = 10 * len(harness.requests)
    return harness.add([(first + i) % 1000 for i in range(num_tokens)], max_tokens)


def _starts(harness: Harness) -> Iterator[Request]:
    """Requests in the order in which they start, those that have not yet."""
    seen = {request for request in harness.requests if request.status is not Status.WAITING}
    while harness.scheduler.has_work:
        harness.step()
        for request in harness.requests:
            if request not in seen and request.status is not Status.WAITING:
                seen.add(request)
                yield request


def _service(harness: Harness) -> Counter[str]:
    """Weighted tokens that each tenant got, counted from outside: prompts when they start, answers as they land."""
    got: Counter[str] = Counter()
    for request in harness.requests:
        if request.status is not Status.WAITING:
            num_computed = request.num_prompt_tokens - (request.num_cached_tokens or 0)
            got[request.tenant] += int(INPUT * num_computed + OUTPUT * request.num_output_tokens)
    return got


def test_tenants_take_turns_whoever_came_first() -> None:
    harness = _harness(max_num_seqs=1, max_num_batched_tokens=8)
    for tenant in "aaaabb":
        _add(harness, tenant)
    assert [request.tenant for request in _starts(harness)] == ["a", "b", "a", "b", "a", "a"]


def test_a_tenant_with_shorter_requests_has_more_of_them_served() -> None:
    harness = _harness(max_num_seqs=1, max_num_batched_tokens=32)
    for _ in range(4):
        _add(harness, "long", 12, 10)
    for _ in range(12):
        _add(harness, "short", 2, 3)
    order = [request.tenant for request in _starts(harness)]
    assert order[:6] == ["long", *["short"] * 4, "long"]


def test_of_one_tenant_it_is_first_come_first_served() -> None:
    harness = _harness(max_num_seqs=2, max_num_batched_tokens=8)
    requests = [_add(harness, "a", 4, length) for length in (5, 1, 3, 2)]
    assert list(_starts(harness)) == requests


def test_idling_earns_no_credit() -> None:
    """One tenant alone gets much; the other comes later and shares from then on, without what it might have had."""
    harness = _harness(max_num_seqs=1, max_num_batched_tokens=8)
    for _ in range(20):
        _add(harness, "busy")
    for _ in range(60):
        harness.step()
    assert sum(request.is_finished for request in harness.requests) >= 5
    for _ in range(6):
        _add(harness, "late")
    order = [request.tenant for request in _starts(harness)]
    assert sorted(order[:6]) == ["busy"] * 3 + ["late"] * 3


def test_nor_where_nobody_waited_meanwhile() -> None:
    """The busy tenant's requests never waited; what they got counts when the other comes all the same."""
    harness = _harness(max_num_seqs=1, max_num_batched_tokens=8)
    _add(harness, "late")
    harness.run()
    for _ in range(10):
        _add(harness, "busy")
        harness.run()
    for tenant in ("busy", "busy", "late", "late", "late", "late"):
        _add(harness, tenant)
    order = [request.tenant for request in _starts(harness)]
    assert sorted(order[:4]) == ["busy", "busy", "late", "late"]


def test_what_was_cached_costs_nothing() -> None:
    harness = _harness(max_num_seqs=1, max_num_batched_tokens=40, prefix_caching=True)
    harness.standing = lambda number: {"tenant": "a"}
    for _ in range(3):
        harness.add(list(range(20)), 1)
        harness.run()
    tenant = harness.scheduler.population.tenants.of("a")
    assert tenant.computed_prompt_tokens == 20 + 1 + 1
    assert (tenant.prompt_tokens, tenant.generation_tokens) == (60, 3)


def test_a_preempted_request_goes_on_before_all_that_have_not_started() -> None:
    harness = _harness(num_blocks=10, max_num_seqs=4)
    first = _add(harness, "a", 12, 20)
    second = _add(harness, "a", 12, 20)
    while not harness.scheduler.counters.num_preemptions:
        harness.step()
    other = _add(harness, "b", 4, 4)
    assert list(harness.scheduler.waiting) == [second, other]
    harness.run()
    for request in (first, second, other):
        harness.check_answer(request)


def _bound(harness: Harness, longest_prompt: int, longest_answer: int) -> float:
    return INPUT * longest_prompt + OUTPUT * harness.max_num_seqs * longest_answer + harness.policy.fair_slack


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_blocks=st.integers(10, 60),
    depth=st.sampled_from([1, 2]),
    max_num_seqs=st.integers(1, 6),
    slack=st.sampled_from([0.0, 30.0, 4096.0]),
    caching=st.booleans(),
)
def test_what_two_backlogged_tenants_get_differs_by_the_bound(
    seed: int, num_blocks: int, depth: int, max_num_seqs: int, slack: float, caching: bool
) -> None:
    """One sends ten times as much as the other; as long as both have something in line, at any time."""
    rng = random.Random(seed)
    harness = _harness(slack, num_blocks=num_blocks, depth=depth, max_num_seqs=max_num_seqs, prefix_caching=caching)
    longest_prompt, longest_answer = min(24, 2 * num_blocks), min(16, 2 * num_blocks - 1)
    sizes = {"light": (longest_prompt, longest_answer), "heavy": (rng.randint(1, longest_prompt), longest_answer)}
    for number in range(66):
        tenant = "light" if number % 11 == 0 else "heavy"
        prompt, answer = sizes[tenant]
        _add(harness, tenant, rng.randint(1, prompt), rng.randint(1, answer))
    bound = _bound(harness, longest_prompt, longest_answer)
    while all(tenant.num_unstarted for tenant in map(harness.scheduler.population.tenants.of, sizes)):
        harness.step()
        got = _service(harness)
        assert abs(got["light"] - got["heavy"]) <= bound
    harness.run()
    for request in harness.requests:
        harness.check_answer(request)


def test_first_come_first_served_is_beyond_the_bound() -> None:
    """The power check of the test above."""
    harness = Harness(num_blocks=60, max_num_seqs=2, prefix_caching=False)
    for number in range(66):
        _add(harness, "light" if number % 11 == 10 else "heavy", 10, 8)
    worst = 0.0
    while harness.scheduler.has_work:
        harness.step()
        got = _service(harness)
        worst = max(worst, abs(got["heavy"] - got["light"]))
    assert worst > 2 * _bound(harness, 10, 8) - 2 * harness.policy.fair_slack


def test_the_account_is_what_was_counted_from_outside() -> None:
    """With choices, preemptions, aborts and two steps in flight."""
    for seed in range(20):
        rng = random.Random(seed)
        harness = _harness(num_blocks=20, depth=rng.choice([1, 2]), max_num_seqs=4)
        for _ in range(10):
            tenant = rng.choice("abc")
            harness.standing = lambda number, tenant=tenant: {"tenant": tenant}  # type: ignore[misc]
            prompt = [rng.randrange(900) for _ in range(rng.randint(1, 12))]
            harness.add_choices(prompt, rng.choice([1, 1, 3]), rng.randint(1, 12))
        for _ in range(rng.randint(0, 40)):
            harness.step()
        harness.scheduler.abort(rng.choice(harness.requests))
        harness.run()
        said = Counter[str]()
        for request in harness.requests:
            said[request.tenant] += request.num_output_tokens
        counts = harness.scheduler.tenant_counts()
        assert {name: each.generation_tokens for name, each in counts.items()} == {name: said[name] for name in counts}
        assert sum(each.prompt_tokens for each in counts.values()) == harness.scheduler.counters.prompt_tokens
        for name in counts:
            record = harness.scheduler.population.tenants.of(name)
            assert (record.num_open, record.num_unstarted) == (0, 0)


def test_of_many_tenants_the_first_have_figures_of_their_own() -> None:
    """And nothing is lost of those that are forgotten."""
    tenants, count = Tenants(), MAX_TENANTS + 200
    for number in range(count):
        request = Request("r", [1, 2], SamplingParams(), max_tokens=1)
        request.tenant = f"t{number}"
        tenants.add(request)
        tenants.start(request, 2)
        tenants.count_prompt(request)
        request.token_ids.append(3)
        request.move_to(Status.RUNNING)
        tenants.end(request)
    counts = tenants.counts()
    assert list(counts) == [*(f"t{number}" for number in range(MAX_NAMED_TENANTS)), OTHER_TENANTS]
    num_others = count - MAX_NAMED_TENANTS
    assert counts[OTHER_TENANTS] == (2 * num_others, num_others)
    assert len(tenants._known) <= MAX_TENANTS


def test_a_tenant_that_is_called_like_the_rest_is_counted_with_it() -> None:
    tenants = Tenants()
    for name in (OTHER_TENANTS, *(f"t{number}" for number in range(MAX_NAMED_TENANTS + 1))):
        request = Request("r", [1, 2], SamplingParams(), max_tokens=1)
        request.tenant = name
        tenants.add(request)
        tenants.count_prompt(request)
    assert tenants.counts()[OTHER_TENANTS] == (4, 0)


def test_tenants_that_nobody_asked_for_have_no_figures() -> None:
    assert Tenants().counts() == {}


@pytest.mark.parametrize("tenant", ["", "a b", "x" * 65, "\n", None, "ä"])
def test_a_tenant_is_a_short_plain_name(tenant: str) -> None:
    with pytest.raises(InvalidRequestError, match="tenant"):
        _add(_harness(), tenant)


@pytest.mark.parametrize("weights", [(0.0, 1.0), (1.0, -1.0), (float("nan"), 1.0), (1.0, float("inf"))])
def test_weights_are_above_nothing(weights: tuple[float, float]) -> None:
    with pytest.raises(ConfigurationError, match="fair_"):
        PolicySettings("fair", fair_input_weight=weights[0], fair_output_weight=weights[1])


def test_who_gave_way_does_not_go_first_again() -> None:
    """The turn of a request is overdue; the one that passed it gives way, and comes back after it."""
    harness = _harness(num_blocks=14, head_skips=SkipBounds(max_steps=3))
    first = _add(harness, "a", 20, 24)
    harness.step()
    large = _add(harness, "b", 40, 4)
    small = _add(harness, "c", 4, 40)
    while not small.num_preemptions:
        assert harness.step()
    assert large.rank < small.rank
    assert [request for request in (large, small) if request.status is Status.RUNNING] in ([large], [])
    harness.run()
    assert small.num_preemptions <= 2
    for request in (first, large, small):
        harness.check_answer(request)
