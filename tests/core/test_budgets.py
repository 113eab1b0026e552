"""Two budgets in a step: rows that wait for their next token always have it, prompts share what they leave; how much
that is follows measured times, here of a made-up machine."""

from dataclasses import dataclass
from random import Random

import pytest

from octavo.core.chunk_budget import ChunkBudget
from octavo.core.errors import ConfigurationError
from octavo.core.request import Request, Status
from octavo.core.scheduler_types import PromptBounds
from octavo.core.step import StepPlan
from tests.support.fake_runner import expected_output
from tests.support.scheduling import Harness

DEPTHS = pytest.mark.parametrize("depth", [1, 2])


@dataclass
class Machine:
    """Carries a harness's steps out on a clock of its own: seconds of a step, for each row, for each token of a prompt
    and for each position that such a token looks at."""

    harness: Harness
    base: float = 2e-3
    row: float = 1e-3
    token: float = 1e-3
    position: float = 1e-6
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        self.now = 0.0
        self.steps: list[tuple[StepPlan, float]] = []

    def seconds(self, plan: StepPlan) -> float:
        work = self.base
        for start, count, samples in zip(plan.starts, plan.counts, plan.samples, strict=True):
            is_chunk = count > 1 or not samples
            work += count * (self.token + self.position * (start + count / 2)) if is_chunk else self.row
        return self.slowdown * work

    def step(self) -> bool:
        harness = self.harness
        while len(harness.pending) < harness.depth and harness.plan():
            pass
        if not harness.pending:
            return False
        plan = harness.runner.plans[-len(harness.pending)]
        seconds = self.seconds(plan)
        assert harness.land()
        self.now += seconds
        harness.scheduler.pace.note(plan, seconds)
        self.steps.append((plan, seconds))
        return True

    def run_until(self, request: Request, num_output_tokens: int = 1) -> list[tuple[StepPlan, float]]:
        """Steps until a request has so many tokens of its answer."""
        first = len(self.steps)
        while request.num_output_tokens < num_output_tokens:
            assert self.step()
        return self.steps[first:]


def made(depth: int = 1, bounds: PromptBounds | None = None, **costs: float) -> Machine:
    return Machine(
        Harness(
            num_blocks=1400,
            block_size=16,
            max_model_len=8192,
            depth=depth,
            max_num_seqs=32,
            max_num_batched_tokens=512,
            prompts=bounds or PromptBounds(),
        ),
        **costs,
    )


def prompt(length: int, seed: int = 0) -> list[int]:
    source = Random(seed)
    return [source.randrange(1000) for _ in range(length)]


def streams(machine: Machine, count: int = 16, length: int = 20) -> list[Request]:
    """Sequences that all wait for their next token, and have for a while."""
    requests = [machine.harness.add(prompt(length, seed), 800) for seed in range(1, count + 1)]
    while requests[-1].num_output_tokens < 8:
        machine.step()
    return requests


def chunk(plan: StepPlan, request: Request) -> int:
    return dict(zip(plan.row_ids, plan.counts, strict=True)).get(request.row_id, 0)


def seconds_alone(machine: Machine, length: int) -> float:
    alone = made(base=machine.base, row=machine.row, token=machine.token, position=machine.position)
    alone.run_until(alone.harness.add(prompt(length, 99), 1))
    return alone.now


def longest(steps: list[tuple[StepPlan, float]], share: float) -> float:
    seconds = sorted(seconds for _, seconds in steps)
    return seconds[int(share * (len(seconds) - 1))]


# A long prompt beside streams


@DEPTHS
@pytest.mark.parametrize("position", [0.0, 1e-6])
@pytest.mark.parametrize("num_streams", [8, 16, 31])
def test_a_long_prompt_beside_streams(depth: int, position: float, num_streams: int) -> None:
    machine = made(depth, position=position)
    beside = streams(machine, num_streams)
    without = machine.steps[-1][1]
    start, request = machine.now, machine.harness.add(prompt(2000, 99), 1)
    steps = machine.run_until(request)
    assert not any(each.is_finished for each in beside)
    assert longest(steps, 0.99) <= 2 * without
    assert machine.now - start <= 3 * seconds_alone(machine, 2000)
    assert all(each.row_id in plan.row_ids for plan, _ in steps for each in beside)


@DEPTHS
def test_rows_are_never_left_out_for_prompts(depth: int) -> None:
    """The floor, with as many sequences as fit and a budget that they fill but for two tokens."""
    harness = Harness(num_blocks=200, depth=depth, max_num_seqs=8, max_num_batched_tokens=8)
    requests = [harness.add([10 * i, 1, 2], 30) for i in range(6)]
    while requests[-1].num_output_tokens < 2:
        harness.step()
    late = harness.add(list(range(100, 140)), 2)
    while not late.num_output_tokens:
        plan_before = len(harness.runner.plans)
        harness.step()
        for plan in harness.runner.plans[plan_before:]:
            waiting = [each for each in requests if each.status is Status.RUNNING]
            assert {each.row_id for each in waiting} <= set(plan.row_ids)
            assert chunk(plan, late) <= 2
    harness.run()
    for request in harness.requests:
        harness.check_answer(request)


def test_chunks_shrink_as_the_context_grows_and_grow_when_the_machine_is_quicker() -> None:
    machine = made(position=2e-6)
    streams(machine)
    request = machine.harness.add(prompt(2000, 99), 1)
    steps = machine.run_until(request)
    chunks = [chunk(plan, request) for plan, _ in steps if chunk(plan, request)]
    assert chunks[5] > 2 * chunks[-2] > 2
    machine.token, machine.position = 1e-4, 0.0
    request = machine.harness.add(prompt(2000, 98), 1)
    steps = machine.run_until(request)
    assert max(chunk(plan, request) for plan, _ in steps) > 3 * chunks[0]


def test_a_machine_that_slows_down_slows_both_down() -> None:
    """What a step takes without prompts is looked at again while one is computed: it is not taken for their cost."""
    machine = made(position=0.0)
    streams(machine)
    request = machine.harness.add(prompt(4000, 99), 1)
    before = [chunk(machine.steps[-1][0], request) for _ in range(30) if machine.step()][-1]
    machine.slowdown = 3.0
    after = [chunk(machine.steps[-1][0], request) for _ in range(80) if machine.step()][-3:]
    assert max(after) == pytest.approx(before, abs=2)


def test_tokens_that_cost_next_to_nothing_are_no_fault() -> None:
    """A cost that has shrunk with each step: more tokens would have room than any number says."""
    budget = ChunkBudget(10, 1.0, lambda _start: 5e-324)
    assert budget.most_tokens(0) == 10


def test_a_step_that_was_held_up_changes_little() -> None:
    machine = made(position=0.0)
    streams(machine)
    request = machine.harness.add(prompt(4000, 99), 1)
    for number in range(120):
        machine.slowdown = 20.0 if number % 30 == 29 else 1.0
        machine.step()
    chunks = [chunk(plan, request) for plan, _ in machine.steps[-60:] if chunk(plan, request)]
    assert min(chunks) >= max(chunks) / 2


def test_without_a_clock_there_is_no_bound_but_the_token_budget() -> None:
    machine = made()
    streams(machine)
    harness = Harness(num_blocks=600, block_size=16, max_num_seqs=32, max_num_batched_tokens=512)
    harness.add([1, 2, 3], 20)
    harness.step(), harness.step()
    request = harness.add(prompt(2000, 99), 1)
    harness.plan()
    assert chunk(harness.runner.plans[-1], request) == 511


def test_prompts_alone_have_the_whole_budget() -> None:
    machine = made()
    streams(machine)
    for request in machine.harness.requests:
        machine.harness.scheduler.abort(request)
    request = machine.harness.add(prompt(2000, 99), 1)
    machine.step()
    assert chunk(machine.steps[-1][0], request) == 512


def test_where_prompts_queue_up_they_have_the_whole_budget() -> None:
    machine = made()
    rows = streams(machine)
    for seed in range(5):
        machine.harness.add(prompt(400, 50 + seed), 1)
    machine.step()
    assert machine.steps[-1][0].num_tokens == 512
    assert {each.row_id for each in rows} <= set(machine.steps[-1][0].row_ids)


# A target


@DEPTHS
@pytest.mark.parametrize("target", [0.030, 0.060, 0.120])
def test_steps_take_the_target(depth: int, target: float) -> None:
    machine = made(depth, PromptBounds(target_seconds=target))
    streams(machine)
    request = machine.harness.add(prompt(2000, 99), 1)
    steps = [seconds for plan, seconds in machine.run_until(request) if chunk(plan, request)]
    settled = sorted(steps[5:-1])
    assert settled[len(settled) // 2] == pytest.approx(target, rel=0.1)
    assert settled[-1] <= 1.3 * target


def test_many_prompts_keep_the_target_too() -> None:
    machine = made(bounds=PromptBounds(target_seconds=0.040))
    streams(machine, 8)
    requests = [machine.harness.add(prompt(500, 50 + seed), 2) for seed in range(12)]
    steps = machine.run_until(requests[-1])
    assert longest(steps, 0.95) <= 1.3 * 0.040


def test_a_target_that_cannot_be_met_leaves_prompts_a_little() -> None:
    machine = made(bounds=PromptBounds(target_seconds=1e-3))
    streams(machine)
    request = machine.harness.add(prompt(600, 99), 1)
    steps = machine.run_until(request)
    assert len(steps) <= 600 * 17 / 16 + 2
    assert longest(steps, 0.9) <= 1.3 * machine.steps[10][1]


# Long prompts and short ones


@DEPTHS
def test_short_prompts_do_not_wait_for_a_long_one_nor_it_for_them(depth: int) -> None:
    machine = made(depth, base=1e-3)
    long = machine.harness.add(prompt(6000, 99), 1)
    machine.step()
    waits = []
    for seed in range(20):
        short = machine.harness.add(prompt(200, seed), 1)
        waits.append(len(machine.run_until(short)))
        if long.num_output_tokens:
            break
        plans = [plan for plan, _ in machine.steps[-waits[-1] :]]
        assert all(chunk(plan, long) >= 256 for plan in plans[depth:])
    assert max(waits) <= 1 + depth
    machine.run_until(long)
    machine.harness.run()


@DEPTHS
@pytest.mark.parametrize("max_long", [1, 2, 3])
def test_no_more_long_prompts_are_in_work_than_may_be(depth: int, max_long: int) -> None:
    bounds = PromptBounds(max_long, long_threshold=40)
    harness = Harness(num_blocks=400, depth=depth, max_num_batched_tokens=32, prompts=bounds)
    requests = [harness.add(prompt(100 + seed, seed), 3) for seed in range(6)]
    small = [harness.add(prompt(10, 40 + seed), 2) for seed in range(2)]
    most = 0
    while harness.step():
        begun = [each for each in requests if each.status is Status.RUNNING and each.num_computed_tokens < 100]
        most = max(most, len(begun))
        if not small[-1].is_finished:
            assert requests[-1].status is Status.WAITING
    assert most == max_long
    harness.run()
    assert [request.token_ids[request.num_prompt_tokens :] for request in requests] == [
        expected_output(prompt(100 + seed, seed), 3) for seed in range(6)
    ]


def test_long_prompts_in_work_share_what_they_have() -> None:
    bounds = PromptBounds(2, long_threshold=40)
    harness = Harness(num_blocks=400, max_num_batched_tokens=32, prompts=bounds)
    first, second = (harness.add(prompt(300, seed), 1) for seed in (1, 2))
    harness.step(), harness.step(), harness.plan()
    harness.land()
    for _ in range(3):
        harness.step()
    plan = harness.runner.plans[-1]
    assert (chunk(plan, first), chunk(plan, second)) in {(32, 0), (16, 16)}
    harness.run()


def test_a_held_prompt_can_be_aborted() -> None:
    harness = Harness(num_blocks=400, prompts=PromptBounds(1, long_threshold=40))
    harness.add(prompt(200, 1), 1)
    held = harness.add(prompt(200, 2), 1)
    harness.add(prompt(10, 3), 1)
    while held not in harness.scheduler.population.held_long:
        harness.step()
    assert held in harness.scheduler.open_requests
    harness.scheduler.abort(held)
    harness.check()
    harness.run()
    assert held.status is Status.ABORTED


def test_held_prompts_come_back_one_by_one_as_they_came() -> None:
    """The others are not looked at again until it is their turn."""
    harness = Harness(num_blocks=400, prompts=PromptBounds(1, long_threshold=40))
    requests = [harness.add(prompt(200, number), 1) for number in range(4)]
    held, seen = harness.scheduler.population.held_long, [list[Request]()]
    while harness.scheduler.has_work:
        harness.step()
        if seen[-1] != list(held):
            seen.append(list(held))
    assert seen == [[], requests[1:], requests[2:], requests[3:], []]


@pytest.mark.parametrize("bounds", [{"max_long": 0}, {"long_threshold": 0}, {"target_seconds": 0.0}])
def test_bounds_that_are_none_are_refused(bounds: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        PromptBounds(**bounds)  # type: ignore[arg-type]


# Everything at once


@DEPTHS
@pytest.mark.parametrize("seed", range(30))
def test_random_loads_on_a_clock(depth: int, seed: int) -> None:
    """Budgets by the clock and the cap change when tokens come, and none of them; nothing hangs, in small pools too."""
    source = Random(seed)
    bounds = PromptBounds(source.choice([1, 2]), source.choice([None, 20, 40]), source.choice([None, 0.01, 0.03]))
    harness = Harness(
        num_blocks=source.choice([30, 60, 200]), depth=depth, max_num_batched_tokens=source.choice([8, 32]),
        prompts=bounds,
    )  # fmt: skip
    machine = Machine(harness, position=1e-5)
    coming = [(prompt(source.choice([3, 10, 30, 80]), source.randrange(12)), source.randint(1, 25)) for _ in range(40)]
    while coming or harness.scheduler.has_work:
        if coming and source.random() < 0.4:
            harness.add(*coming.pop())
        machine.slowdown = source.choice([1.0, 1.0, 1.0, 0.5, 8.0])
        machine.step()
    assert all(request.status is Status.LENGTH for request in harness.requests)
    for request in harness.requests:
        harness.check_answer(request)
