"""Random pools, budgets, arrivals, aborts and faults: every request ends, with the answer it has alone."""

import random
from collections import Counter

import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.request import Request, Status
from octavo.core.scheduler_types import SkipBounds
from octavo.core.speculation import Speculation
from octavo.core.step import StepPlan
from tests.support.drafters import HostileDrafter
from tests.support.fake_runner import FREQUENT_EOS
from tests.support.naive_beam_search import Search
from tests.support.policies import POLICIES, QUANTILES, with_policy
from tests.support.scheduling import Harness


def _random_harness(rng: random.Random) -> Harness:
    num_groups = rng.choice([1, 1, 1, 2])
    return Harness(
        num_blocks=rng.randint(6, 40) * num_groups,
        block_size=rng.choice([1, 2, 4, 5]),
        num_groups=num_groups,
        depth=rng.choice([1, 2]),
        max_num_seqs=rng.randint(1, 6),
        max_num_batched_tokens=rng.randint(6, 40),
        prefix_caching=rng.random() < 0.7,
        max_prefix_wait_steps=rng.choice([1, 5, 64]),
        head_skips=SkipBounds(rng.choice([0, 1, 4, 32]), rng.choice([1, 3, 20, 256])),
        admission_quantile=rng.choice(QUANTILES),
        speculation=Speculation(rng.choice([0, 0, 2, 15]), lambda: HostileDrafter(rng)),
        **with_policy(rng.choice(POLICIES)),
    )


def _random_prompt(rng: random.Random) -> list[int]:
    """Few distinct heads, so that prefixes are shared often."""
    head = [rng.choice([0, 1]) * 100 + i for i in range(rng.choice([0, 3, 8, 17]))]
    return head + [rng.randrange(50) for _ in range(rng.randint(1, 12))]


def _add(harness: Harness, rng: random.Random) -> None:
    """A request, one with several choices, or a beam search."""
    prompt, max_tokens = _random_prompt(rng), rng.randint(1, 25)
    stop_ids = sorted({rng.randrange(1000) for _ in range(rng.choice([0, 100]))})
    salt = rng.choice([None, None, "a"])
    kind = rng.random()
    try:
        if kind < 0.15:
            harness.add_beams(prompt, _random_search(rng), salt)
        else:
            n = rng.randint(2, 5) if kind < 0.45 else 1
            num_open = rng.randint(0, len(prompt)) if salt and rng.random() < 0.5 else 0
            harness.add_choices(prompt, n, max_tokens, stop_ids=stop_ids, salt=salt, num_open=num_open)
    except InvalidRequestError:
        assert kind < 0.15 or len(prompt) + max_tokens > harness.scheduler.door.max_tokens_per_sequence


def _random_search(rng: random.Random) -> Search:
    return Search(
        width=rng.randint(1, 4),
        max_tokens=rng.randint(1, 12),
        eos=rng.choice([frozenset(), FREQUENT_EOS]),
        length_penalty=rng.choice([0.0, 0.6, 1.0]),
        early_stopping=rng.choice([False, True, "never"]),
    )


def _check_answer(harness: Harness, request: Request, poisoned: Request | None) -> None:
    harness.check_answer(request)
    if poisoned is not None and (request is poisoned or (request.group and request.group is poisoned.group)):
        assert request.status in (Status.FAILED, Status.ABORTED, Status.LENGTH, Status.STOPPED)
    else:
        assert request.status in (Status.ABORTED, Status.LENGTH, Status.STOPPED)


@pytest.mark.parametrize("seed", range(200))
def test_random_schedule(seed: int) -> None:
    rng = random.Random(seed)
    harness = _random_harness(rng)
    for _ in range(rng.randint(1, 4)):
        _add(harness, rng)
    poisoned = rng.choice(harness.requests) if harness.requests and rng.random() < 0.3 else None
    passing_faults = rng.choice([0.0, 0.0, 0.05])

    def fails(plan: StepPlan) -> None:
        if poisoned is not None and poisoned.row_id in plan.row_ids and poisoned.num_output_tokens >= 2:
            raise RuntimeError("this request always fails here")
        if len(plan.row_ids) > 1 and rng.random() < passing_faults:
            raise RuntimeError("a fault that passes")

    harness.runner.fails = fails
    for _ in range(rng.randint(20, 150)):
        action = rng.random()
        if action < 0.1:
            _add(harness, rng)
        elif action < 0.15 and harness.requests:
            harness.scheduler.abort(rng.choice(harness.requests))
            harness.check()
        elif action < 0.17:
            harness.scheduler.reset_prefix_cache()
        elif action < 0.6:
            if len(harness.pending) < harness.depth:
                harness.plan()
        else:
            harness.land()
    harness.run()
    for request in harness.requests:
        _check_answer(harness, request, poisoned)


def test_the_schedules_do_preempt_share_fork_and_search() -> None:
    """The power check of the test above: its mechanisms do happen."""
    happened: Counter[str] = Counter()
    for seed in range(80):
        rng = random.Random(seed)
        harness = _random_harness(rng)
        for _ in range(8):
            _add(harness, rng)
        harness.run()
        happened["preemptions"] += harness.scheduler.counters.num_preemptions
        happened["hits"] += harness.scheduler.counters.prefix_hits
        happened["forks"] += sum(len(plan.forks) for plan in harness.runner.plans)
        happened["copies"] += harness.kv.num_copies
        happened["preempted beams"] += sum(request.num_preemptions for request in harness.searches)
        happened["results"] += len(harness.hypotheses)
        happened["accepted drafts"] += harness.scheduler.counters.num_accepted_tokens
        happened["drafts"] += harness.scheduler.counters.num_draft_tokens
    assert happened["preemptions"] > 5
    assert happened["hits"] > 10
    assert happened["forks"] > 30
    assert happened["copies"] > 30
    assert happened["preempted beams"] > 2
    assert happened["results"] > 15
    assert happened["drafts"] - 50 > happened["accepted drafts"] > 50
