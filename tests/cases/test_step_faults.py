"""A step that fails for one request: that one ends with an error, all others get the same, bit for bit, as ever."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from octavo.core.sampling_params import SamplingParams
from octavo.core.step import Runner, StepPlan, StepResult
from tests.support.driving import Driver, Job, all_bits, greedy_params, run_apart
from tests.support.models import RAND_VOCAB
from tests.support.parity import random_ids


class FaultyRunner:
    """The engine's own runner, failing where the sequence that begins with ``marker`` computes position
    ``position``. The fault comes after the step has computed, so what it wrote and drew must not count either."""

    def __init__(self, runner: Runner, marker: int, position: int, times: int) -> None:
        self._runner = runner
        self._marker = marker
        self._position = position
        self.times = times
        self._marked: set[int] = set()

    def submit(self, plan: StepPlan) -> Any:
        self._marked |= {row.row_id for row in plan.new_rows if row.token_ids[0] == self._marker}
        pending = self._runner.submit(plan)
        for row_id, start, count in zip(plan.row_ids, plan.starts, plan.counts, strict=True):
            if self.times and row_id in self._marked and start <= self._position < start + count:
                self.times -= 1
                failed: Future[StepResult] = Future()
                failed.set_exception(RuntimeError("injected"))
                return failed
        return pending

    def reset(self) -> None:
        self._runner.reset()
        self._marked.clear()


MARKER = 3
SETTINGS: dict[str, Any] = {"block_size": 4, "num_blocks": 80, "max_model_len": 128}


def jobs() -> list[Job]:
    """Four requests of which the third fails; two are seeded; one comes in while it fails."""
    prompts = [
        [number, *random_ids(length, RAND_VOCAB, seed=length)] for number, length in enumerate((9, 30, 17, 12), 1)
    ]
    seeded = SamplingParams(temperature=1.0, seed=4, max_tokens=30, ignore_eos=True, logprobs=1, presence_penalty=0.5)
    greedy = greedy_params(30, logprobs=1)
    return [
        Job(prompts[0], greedy),
        Job(prompts[1], seeded),
        Job(prompts[2], greedy),
        Job(prompts[3], seeded, at_step=6),
    ]


@pytest.fixture(scope="module")
def right(rand: Path) -> list[list[Any]]:
    return all_bits(run_apart(Driver(rand, **SETTINGS), jobs()))


# The whole prompt in the first step, a decode step, the last position computed.
POSITIONS = [0, 17, 22, 46]


@pytest.mark.parametrize("budget", [512, 8], ids=["whole prompts", "chunks of 8"])
@pytest.mark.parametrize("position", POSITIONS)
def test_a_request_that_always_fails_ends_alone(position: int, budget: int, rand: Path, right: list[list[Any]]) -> None:
    driver = Driver(rand, max_num_seqs=8, max_num_batched_tokens=budget, **SETTINGS)
    driver.engine._runner = FaultyRunner(driver.engine._runner, MARKER, position, times=1000)
    answers = driver.run(jobs())
    (failed,) = answers[2]
    assert failed.finish_reason == "error"
    assert failed.deltas[-1].error == "the model could not compute this request: injected"
    assert failed.deltas[-1].invalid_param is None
    assert failed.token_ids == right[2][0][0][: len(failed.token_ids)]
    assert len(failed.token_ids) == max(0, position - 17)
    for number in (0, 1, 3):
        assert all_bits([answers[number]])[0] == right[number]
    assert driver.stats.failed == 1
    assert driver.run(jobs()[:1])[0][0].bits == right[0][0]


@pytest.mark.parametrize("position", POSITIONS)
def test_a_fault_that_does_not_come_again_harms_nobody(position: int, rand: Path, right: list[list[Any]]) -> None:
    driver = Driver(rand, **SETTINGS)
    runner = FaultyRunner(driver.engine._runner, MARKER, position, times=1)
    driver.engine._runner = runner
    assert all_bits(driver.run(jobs())) == right
    assert runner.times == 0
    assert driver.stats.failed == 0


def test_masks_that_leave_no_token_are_the_clients_own_error(rand: Path) -> None:
    driver = Driver(rand, **SETTINGS)
    eos = max(driver.tokenizer.eos_token_ids)
    stuck = SamplingParams(max_tokens=8, min_tokens=4, allowed_token_ids=[eos])
    fine = Job([1, 2, 3], greedy_params(8, logprobs=1))
    (alone,) = run_apart(driver, [fine])
    (failed,), beside = driver.run([Job([5, 6], stuck), fine])
    assert failed.finish_reason == "error"
    assert failed.deltas[-1].invalid_param == ""
    assert "leave no token to draw" in (failed.deltas[-1].error or "")
    assert all_bits([beside]) == all_bits([alone])
