"""Layer groups with windows under random schedules: whatever else happens, every request gets the answer that it has
alone, and a sequence holds no more blocks than its windows need."""

import random
from collections import Counter
from typing import Any

import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.request import Request, Status
from octavo.core.retention import Retention
from octavo.core.scheduler_types import PREEMPTION_MODES, SkipBounds
from octavo.core.step import NO_BLOCK, StepPlan
from tests.support.fake_runner import FREQUENT_EOS
from tests.support.naive_beam_search import Search
from tests.support.policies import QUANTILES
from tests.support.scheduling import Harness

WINDOWS: tuple[tuple[int | None, ...], ...] = ((None, 5), (None, 3, 8), (6,), (1,), (4, 9), (None, None, 7))
"""Of each layer group: as in Gemma 3, as in Mistral, and others."""

NUM_ALWAYS = 20
NUM_SEEDS = 100
"""Of each of these; the others with ``make soak``."""


def _random_harness(rng: random.Random, windows: tuple[int | None, ...]) -> Harness:
    max_num_seqs = rng.randint(1, 6)
    budget = max_num_seqs + rng.randint(0, 12)
    size, depth = rng.choice([1, 2, 4, 5]), rng.choice([1, 2])
    largest = max(-(-((window or 30) + budget * depth) // size) + 2 for window in windows)
    harness = Harness(
        num_blocks=rng.randint(largest, 3 * largest) * len(windows),
        block_size=size,
        num_groups=len(windows),
        windows=windows,
        depth=depth,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        prefix_caching=rng.random() < 0.8,
        max_prefix_wait_steps=rng.choice([1, 5, 64]),
        head_skips=SkipBounds(rng.choice([0, 1, 3, 32]), rng.choice([0, 1, 4, 256])),
        admission_quantile=rng.choice(QUANTILES),
        num_host_blocks=rng.choice([0, 3, 20, 300]),
        keep_evicted=rng.random() < 0.5,
        num_disk_slots=rng.choice([0, 0, 20]),
        preemption_mode=rng.choice(PREEMPTION_MODES),
        eviction_policy=rng.choice(["lru", "reuse"]),
    )
    costs = harness.scheduler.population.costs
    costs.seconds_per_token, costs.seconds_per_block = rng.choice([None, 0.001]), rng.choice([0.0, 0.001])
    return harness


def _add(harness: Harness, rng: random.Random) -> None:
    """A request, one with several choices, or a beam search. Few distinct heads, so that prefixes are shared."""
    head = [rng.choice([0, 1]) * 100 + i for i in range(rng.choice([0, 3, 8, 17, 30]))]
    prompt, max_tokens = head + [rng.randrange(3) for _ in range(rng.randint(1, 12))], rng.randint(1, 40)
    salt = rng.choice([None, None, "a"])
    kept: dict[str, Any] = {"retention": rng.choice([None, None, Retention(80, 9), Retention(10)])}
    kind = rng.random()
    try:
        if kind < 0.15:
            eos = rng.choice([frozenset(), FREQUENT_EOS])
            search = Search(
                rng.randint(1, 4), rng.randint(1, 12), eos, rng.choice([0.0, 1.0]), rng.choice([False, True])
            )
            harness.add_beams(prompt, search, salt)
        else:
            n = rng.randint(2, 5) if kind < 0.4 else 1
            wanted = {"prompt_logprobs": 0} if rng.random() < 0.1 else {}
            num_open = rng.randint(0, len(prompt)) if salt and rng.random() < 0.5 else 0
            harness.add_choices(prompt, n, max_tokens, salt=salt, num_open=num_open, kept=kept, **wanted)
    except InvalidRequestError:
        assert kind < 0.15 or len(prompt) + max_tokens > harness.scheduler.door.max_tokens_per_sequence


class _Adversary:
    """Shuffles free blocks, and preempts now and then."""

    def __init__(self, harness: Harness, rng: random.Random) -> None:
        self._harness = harness
        self._rng = rng
        self._now = 0.0

    def act(self) -> None:
        harness, rng = self._harness, self._rng
        rng.shuffle(harness.kv.pool._free)
        self._now += 1
        harness.kv.keeping.tell_time(self._now)
        idle = [request for request in harness.scheduler.running if not request.num_in_flight]
        if idle and rng.random() < 0.1:
            harness.scheduler.population.preempt(rng.choice(idle))
            harness.check()


def _run(harness: Harness, rng: random.Random, passing_faults: float) -> None:
    """Arrivals, aborts, resets, preemptions and faults, then to the end."""
    adversary = _Adversary(harness, rng)

    def fails(plan: StepPlan) -> None:
        if len(plan.row_ids) > 1 and rng.random() < passing_faults:
            raise RuntimeError("a fault that passes")

    harness.runner.fails = fails
    for _ in range(rng.randint(20, 120)):
        adversary.act()
        action = rng.random()
        if action < 0.12:
            _add(harness, rng)
        elif action < 0.15 and harness.requests:
            harness.scheduler.abort(rng.choice(harness.requests))
            harness.check()
        elif action < 0.16:
            harness.scheduler.reset_prefix_cache()
        elif action < 0.6:
            if len(harness.pending) < harness.depth:
                harness.plan()
        else:
            harness.land()
    harness.run()


def _check_answer(harness: Harness, request: Request) -> None:
    harness.check_answer(request)
    assert request.status in (Status.ABORTED, Status.LENGTH, Status.STOPPED)


@pytest.mark.parametrize("windows", WINDOWS, ids=str)
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed < NUM_ALWAYS else pytest.mark.soak) for seed in range(NUM_SEEDS)]
)
def test_random_schedule(windows: tuple[int | None, ...], seed: int) -> None:
    rng = random.Random(f"{windows} {seed}")
    harness = _random_harness(rng, windows)
    for _ in range(rng.randint(1, 4)):
        _add(harness, rng)
    _run(harness, rng, rng.choice([0.0, 0.0, 0.05]))
    for request in harness.requests:
        _check_answer(harness, request)


def test_the_schedules_do_slide_share_preempt_and_swap() -> None:
    """The power check of the test above: its mechanisms do happen."""
    happened: Counter[str] = Counter()
    for seed in range(40):
        rng = random.Random(seed)
        harness = _random_harness(rng, WINDOWS[seed % len(WINDOWS)])
        for _ in range(8):
            _add(harness, rng)
        _run(harness, rng, 0.0)
        plans = harness.runner.plans
        happened["given back"] += sum(write.block_id == NO_BLOCK for plan in plans for write in plan.table_writes)
        happened["late starts"] += sum(
            NO_BLOCK in block_ids for plan in plans for row in plan.new_rows for block_ids in row.block_ids
        )
        happened["preemptions"] += harness.scheduler.counters.num_preemptions
        happened["swaps"] += harness.scheduler.counters.num_swaps
        happened["hits"] += harness.scheduler.counters.prefix_hits
        happened["moves from the host"] += sum(len(plan.swap_ins) for plan in plans)
        happened["reads from disk"] += sum(len(plan.disk.reads) for plan in plans)
        happened["forks"] += sum(len(plan.forks) for plan in plans)
        happened["results"] += len(harness.hypotheses)
    assert all(count > 10 for count in happened.values()), happened
