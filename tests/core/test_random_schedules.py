"""Random pools, budgets, arrivals, aborts and faults: every request ends, with the answer it has alone."""

import random

import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.request import Request, Status
from octavo.core.step import StepPlan
from tests.support.fake_runner import expected_output
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
    )


def _random_prompt(rng: random.Random) -> list[int]:
    """Few distinct heads, so that prefixes are shared often."""
    head = [rng.choice([0, 1]) * 100 + i for i in range(rng.choice([0, 3, 8, 17]))]
    return head + [rng.randrange(50) for _ in range(rng.randint(1, 12))]


def _add(harness: Harness, rng: random.Random) -> None:
    prompt, max_tokens = _random_prompt(rng), rng.randint(1, 25)
    stop_ids = sorted({rng.randrange(1000) for _ in range(rng.choice([0, 100]))})
    try:
        harness.add(prompt, max_tokens, stop_ids=stop_ids, salt=rng.choice([None, None, "a"]))
    except InvalidRequestError:
        assert len(prompt) + max_tokens > harness.scheduler.max_tokens_per_sequence


def _check_answer(request: Request, poisoned: Request | None) -> None:
    output = request.token_ids[request.num_prompt_tokens :]
    max_tokens = request.max_total_tokens - request.num_prompt_tokens
    expected = expected_output(request.token_ids[: request.num_prompt_tokens], max_tokens, request.stop_token_ids)
    assert output == expected[: len(output)]
    if request is poisoned:
        assert request.status in (Status.FAILED, Status.ABORTED, Status.LENGTH, Status.STOPPED)
    else:
        assert request.status is not Status.FAILED
    if request.status in (Status.LENGTH, Status.STOPPED):
        assert output == expected


@pytest.mark.parametrize("seed", range(300))
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
        if action < 0.15:
            _add(harness, rng)
        elif action < 0.2 and harness.requests:
            harness.scheduler.abort(rng.choice(harness.requests))
            harness.check()
        elif action < 0.22:
            harness.scheduler.reset_prefix_cache()
        elif action < 0.6:
            if len(harness.pending) < harness.depth:
                harness.plan()
        else:
            harness.land()
    harness.run()
    for request in harness.requests:
        _check_answer(request, poisoned)


def test_the_schedules_do_preempt_share_and_abort() -> None:
    """The power check of the test above: its mechanisms do happen."""
    preemptions = hits = 0
    for seed in range(40):
        rng = random.Random(seed)
        harness = _random_harness(rng)
        for _ in range(8):
            _add(harness, rng)
        harness.run()
        preemptions += harness.scheduler.counters.num_preemptions
        hits += harness.scheduler.counters.prefix_hits
    assert preemptions > 5
    assert hits > 20
